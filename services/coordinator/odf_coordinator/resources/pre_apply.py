"""Checks and changes of specs before they are stored (RFC-018); nothing outside is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from odf_common.codec.model_schema import Spelled
from odf_common.codec.plain_values import map_spelled
from odf_common.errors import InvalidInput
from odf_common.identity.keys import PrivateKey, generate
from odf_common.resources.node_accounts import NODE_DID
from odf_common.resources.registry import DATASET, FLOW, PROJECTION, SOURCE
from odf_common.resources.scalar_formats import Did
from odf_common.resources.secret_encryption import SecretPlace, accept_password, accept_secret
from odf_common.resources.secret_keys import SecretKeys
from odf_common.resources.secret_text import WrittenSecret
from odf_common.resources.templates import IN_SOURCE, names_in_strings
from odf_coordinator.resources.dataset_checks import check_dataset
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.draft import Desired, Prepared
from odf_coordinator.resources.flow_checks import check_flow, flow_spec
from odf_coordinator.resources.projection_controller import check_projection
from odf_coordinator.resources.resolution import ApplyWarning

DROP_OLDEST: Final = "DropOldest"
PASSWORD: Final = "spec.password"  # noqa: S105 - a path


@dataclass(frozen=True, slots=True, kw_only=True)
class PreApply:
    """Prepares specs with the node's keys, which are loaded for the first secret."""

    load_keys: Callable[[], SecretKeys]
    new_key: Callable[[], PrivateKey] = generate
    new_keys: dict[str, PrivateKey] = field(default_factory=dict)
    """The keys of DIDs that were generated, to be kept before the resources are stored."""

    def new_did(self) -> Did:
        """Return the DID of a new key, which is noted."""
        key = self.new_key()
        did = Did(key.dataset_id)
        self.new_keys[did] = key
        return did

    def __call__(self, desired: Desired) -> Prepared:
        """Return the spec to store, with its labels; raises `InvalidInput`."""
        before = {} if desired.stored is None else desired.stored.document["spec"]
        prepared = dict(self._with_secrets(desired, before))
        if desired.did is not None:
            prepared["did"] = desired.did
        if desired.did == NODE_DID and prepared != before:
            raise InvalidInput(text="this account is the node itself, and does not change", where="spec")
        if desired.type is FLOW:
            check_flow(flow_spec(prepared))
        if desired.type is DATASET:
            check_dataset(prepared, before)
            return Prepared(spec=prepared, labels={"datasetKind": prepared["kind"], "did": desired.did})
        if desired.type is PROJECTION:
            check_projection(prepared)
        if desired.type is SOURCE:
            _check_buffer(prepared.get("ingress") or {})
            return Prepared(spec=prepared, warnings=_check_templates(prepared))
        return Prepared(spec=prepared)

    def _with_secrets(self, desired: Desired, before: Mapping[str, Any]) -> Any:
        shape = desired.type.spec
        if shape is None:
            return desired.spec
        stored: dict[str, WrittenSecret] = {}

        def note(spelled: Spelled, plain: Any, where: str) -> Any:
            if spelled.name == "Secret":
                stored[where] = _written(plain)
            return plain

        def encrypt(spelled: Spelled, plain: Any, where: str) -> Any:
            if spelled.name != "Secret":
                return plain
            place = SecretPlace(account=desired.account.text, resource=desired.id, path=where)
            return self._encrypt(plain, place, stored.get(where))

        if before:
            map_spelled(shape, before, note, "spec")
        return map_spelled(shape, desired.spec, encrypt, "spec")

    def _encrypt(self, plain: Any, place: SecretPlace, stored: WrittenSecret | None) -> Json:
        accept = accept_password if place.path == PASSWORD else accept_secret
        accepted = accept(_written(plain), place=place, stored=stored, keys=self.load_keys())
        return {"value": accepted.value, "contentEncoding": accepted.content_encoding}


def _written(plain: Any) -> WrittenSecret:
    if isinstance(plain, str):
        return WrittenSecret(value=plain)
    return WrittenSecret(value=plain["value"], content_encoding=plain.get("contentEncoding"))


def _check_buffer(ingress: Json) -> None:
    """Raise `InvalidInput` for a buffer that drops records."""
    if (ingress.get("buffer") or {}).get("overflowPolicy") == DROP_OLDEST:
        where = "spec.ingress.buffer.overflowPolicy"
        text = f"this node keeps what it has accepted, so it supports Reject only, not {DROP_OLDEST}"
        raise InvalidInput(where=where, text=text)


def _check_templates(spec: Json) -> list[ApplyWarning]:
    """Raise `InvalidInput` for a template of a source that has no value; return warnings for values that none uses."""
    try:
        used = names_in_strings(spec.get("ingress", {}), IN_SOURCE)
    except InvalidInput as error:
        raise error.with_facts(where=f"spec.ingress.{error.where}") from error
    declared = {f"config.{name}": name for name in spec.get("config", {})}
    missing = sorted(used - declared.keys())
    if missing:
        raise InvalidInput(text=f"{missing[0]} is not declared; add it to `config`", where="spec.ingress")
    return [
        ApplyWarning(code="UnusedConfig", path=f"spec.config.{name}", message="no template uses it")
        for key, name in declared.items()
        if key not in used
    ]
