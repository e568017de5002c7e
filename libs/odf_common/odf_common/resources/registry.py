"""The types of resources that a node knows: those of the specification, and those registered by their schemas."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from odf_common.codec.model_schema import Shape, shape_of
from odf_common.codec.plain_values import read_all
from odf_common.errors import InvalidInput, nearest
from odf_common.identity.dataset_refs import Alias, Name
from odf_common.metadata.events import DatasetKind
from odf_common.resources import specs
from odf_common.resources.scalar_formats import (
    TypeIdentity,
    TypeRef,
    TypeUri,
    is_version,
    parse_type_ref,
)
from odf_common.resources.spec_values import core_type


class UnknownType(InvalidInput):
    """No type of resources has this name."""


class UnsupportedVersion(InvalidInput):
    """The type exists in other versions."""


class ReservedName(InvalidInput):
    """The name begins the paths of resources, such as `/config/v1alpha1/variableset`."""

    ADVICE = "choose another name"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """A type of resources."""

    uri: TypeUri
    about: str
    """One sentence on what a resource of the type is."""
    spec: Shape | None = None
    """The shape of the spec; None: it is checked by a registered schema."""
    check: Callable[[Any, list[InvalidInput]], None] | None = None
    """Appends what a registered schema refuses in a spec."""
    short_name: str
    is_system_made: bool = False
    """Whether only controllers create resources of the type."""

    def read_spec(self, plain: object, problems: list[InvalidInput]) -> Any:
        """Return the typed spec, or as it is for a registered type; None after problems, with paths below `spec`."""
        if self.spec is not None:
            return read_all(self.spec, plain, "spec", problems, specs.contradiction_in)
        assert self.check is not None
        before = len(problems)
        self.check(plain, problems)
        return None if len(problems) > before else plain


def _core(
    context: str, name: str, spec: object, *, about: str = "", is_system_made: bool = False
) -> ResourceType:
    doc = about or (spec.__doc__ if isinstance(spec, type) else "") or ""
    return ResourceType(
        uri=TypeUri(context=context, name=name),
        about=doc.split("\n\n")[0],
        spec=shape_of(spec),
        short_name=name,
        is_system_made=is_system_made,
    )


ACCOUNT: Final = _core("auth", "Account", specs.AccountSpec)
RELATIONS: Final = _core("auth", "Relations", specs.RelationsSpec)
VARIABLE_SET: Final = _core("config", "VariableSet", specs.VariableSetSpec)
SECRET_SET: Final = _core("config", "SecretSet", specs.SecretSetSpec)
DATASET: Final = _core("dataset", "Dataset", specs.DatasetSpec)
PROJECTION: Final = _core("dataset", "Projection", specs.ProjectionSpec)
FLOW: Final = _core("flow", "Flow", specs.FlowSpec)
TASK: Final = _core("flow", "Task", specs.TaskSpec, about="One run of a task of a flow.", is_system_made=True)
SOURCE: Final = _core("source", "Source", specs.SourceSpec)
PERSISTENT_VOLUME: Final = _core(
    "storage", "PersistentVolume", specs.PersistentVolumeSpec, about="A place where datasets are stored."
)
WEBHOOK_TARGET: Final = _core("sink", "WebhookTarget", specs.WebhookTargetSpec)
CORE_TYPES: Final = (
    ACCOUNT,
    RELATIONS,
    VARIABLE_SET,
    SECRET_SET,
    DATASET,
    PROJECTION,
    FLOW,
    TASK,
    SOURCE,
    PERSISTENT_VOLUME,
    WEBHOOK_TARGET,
)
WITH_SECRETS: Final = (ACCOUNT, SECRET_SET, WEBHOOK_TARGET)
# First segments of the paths of resources; a version follows.
PATH_CONTEXTS: Final = frozenset({kind.uri.context for kind in CORE_TYPES} | {"resource"})


def _check_dataset_kind(value: Any) -> InvalidInput | None:
    names = tuple(kind.name for kind in DatasetKind)
    if value in names:
        return None
    return InvalidInput(text=f"expected one of {', '.join(names)}, got {value!r}")


_LABELS: Final[Mapping[TypeUri, Callable[[Any], InvalidInput | None]]] = {
    TypeUri(context="dataset", name="DatasetKind"): _check_dataset_kind
}


class Types:
    """The types of a node."""

    def __init__(
        self,
        registered: Iterable[ResourceType] = (),
        labels: Mapping[TypeUri, Callable[[Any], InvalidInput | None]] = MappingProxyType({}),
    ) -> None:
        """Know the types of the specification, `registered` ones, and the checks of `labels` by their schema."""
        self._labels = {uri.identity: check for uri, check in {**_LABELS, **labels}.items()}
        self._by_uri = {str(kind.uri): kind for kind in (*CORE_TYPES, *registered)}
        self._by_name = {kind.short_name.lower(): kind for kind in self._by_uri.values()}

    def __iter__(self) -> Iterator[ResourceType]:
        """Return all types, those of the specification first."""
        return iter(self._by_uri.values())

    def of_schema(self, schema: object) -> ResourceType:
        """Return the type of a manifest's `$schema`: its URI or a short name. Raises `UnknownType`."""
        if not isinstance(schema, str):
            raise UnknownType(text="'$schema' is missing", where="$schema", hint=self._choices())
        found = self._by_uri.get(schema) or self._by_name.get(schema.lower())
        return found or self._refuse(schema, "$schema")

    def of_ref(self, ref: TypeRef) -> ResourceType:
        """Return the type that a reference or selector names, in any version. Raises `UnknownType`."""
        found = self.of_identity(ref.identity) if isinstance(ref, TypeUri) else self._by_name.get(ref.lower())
        return found or self._refuse(str(ref), "type")

    def of_name(self, name: str) -> ResourceType:
        """Return the type that a request names by its URI or short name. Raises `UnknownType`."""
        try:
            return self.of_ref(parse_type_ref(name))
        except UnknownType:
            raise
        except InvalidInput:
            return self._refuse(name, "type")

    def uri_of(self, ref: TypeRef) -> TypeUri | None:
        """Return the URI of a type of resources or labels that the node knows; None for others."""
        if isinstance(ref, TypeUri):
            known = ref.identity in self._labels or self.of_identity(ref.identity) is not None
            return ref if known else None
        found = self._by_name.get(ref.lower())
        return found.uri if found is not None else core_type(ref)

    def check_label(self, key: str, value: Any) -> InvalidInput | None:
        """Return the error of a label's value by the schema of its key, which is as `label_key` returns it."""
        check = next((check for identity, check in self._labels.items() if str(identity) == key), None)
        return None if check is None else check(value)

    def of_identity(self, identity: TypeIdentity) -> ResourceType | None:
        """Return the type of an identity, in its newest version."""
        versions = [kind for kind in self if kind.uri.identity == identity]
        return versions[-1] if versions else None

    def _refuse(self, schema: str, where: str) -> ResourceType:
        same = [str(kind.uri) for kind in self if _is_version_of(schema, kind.uri)]
        if same:
            text = f"{schema} is not served; served: {', '.join(same)}"
            raise UnsupportedVersion(text=text, where=where, hint=same[-1])
        near = nearest(schema.rpartition("/")[2], [kind.short_name for kind in self])
        hint = f"did you mean {near}?" if near else self._choices()
        raise UnknownType(text=f"unknown type {schema!r}", where=where, hint=hint)

    def _choices(self) -> str:
        return "choose from " + ", ".join(kind.short_name for kind in self)


def require_free_path(alias: Alias) -> None:
    """Raise `ReservedName` for a name that a new dataset may not have: its path would be one of resources."""
    if alias.account is not None and alias.account.key in PATH_CONTEXTS and is_version(alias.dataset.key):
        raise ReservedName(text=f"/{alias} is a path of resources; no dataset may have this name")


def require_account_name(name: Name) -> None:
    """Raise `ReservedName` for a name that a new account may not have."""
    if name.key in PATH_CONTEXTS:
        raise ReservedName(text=f"paths of resources begin with /{name.key}; no account may have this name")


def _is_version_of(schema: str, uri: TypeUri) -> bool:
    try:
        return TypeUri.parse(schema).identity == uri.identity
    except InvalidInput:
        return False
