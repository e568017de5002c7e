"""References, as users write them, and handles, as they are stored.

All string forms have one grammar: `[TYPE ":"] (ID | DID | [ACCOUNT "/"] NAME) ["#" PATH]`. A `ReferenceField`
restricts what a field may refer to. Looking up what is referred to is left to the code that has the store.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Name
from odf_common.resources.scalar_formats import (
    DID,
    Did,
    ResourceId,
    TypeRef,
    TypeUri,
    is_uuid,
    parse_name,
    parse_type_ref,
)

# A URI has a colon after its scheme, and may have one before a port; neither ends the type.
_TYPE: Final = re.compile(r"(https://[^/:]+(?::[0-9]+)?(?:/[^/:]+)+|(?!https?://)[^/:]*):(.*)", re.DOTALL)


class InvalidReference(InvalidInput):
    """The string or object is not a reference that its field may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceField:
    """Restrictions of the references of a field."""

    types: tuple[TypeUri, ...] = ()
    """The types of targets; empty: any. The only one may be left out of strings."""
    preferred: TypeUri | None = None
    """The type of several that gives no warning."""
    writes_type: bool = True
    """Whether the object form has the field `type`; without, it is accepted and not printed."""
    has_path: bool = False
    """Whether a path into the target is part of the reference."""

    @property
    def fixed_type(self) -> TypeUri | None:
        """Return the only type of targets."""
        return self.types[0] if len(self.types) == 1 else None

    @property
    def form(self) -> str:
        """Return the string form that the field expects, for errors."""
        names = "|".join(uri.name for uri in self.types) or "TYPE"
        return (
            (f"[{names}:]" if self.fixed_type else f"{names}:") + "[ACCOUNT/]NAME" + "#PATH" * self.has_path
        )


ACCOUNT_TYPE: Final = TypeUri(context="auth", name="Account")
DATASET_TYPE: Final = TypeUri(context="dataset", name="Dataset")
_SECRET_SET: Final = TypeUri(context="config", name="SecretSet")
_SETS: Final = (_SECRET_SET, TypeUri(context="config", name="VariableSet"))
ANY_RESOURCE: Final = ReferenceField()
SOURCE_FIELD: Final = ReferenceField(types=(TypeUri(context="source", name="Source"),))
WEBHOOK_FIELD: Final = ReferenceField(types=(TypeUri(context="sink", name="WebhookTarget"),))
VOLUME: Final = ReferenceField(
    types=(TypeUri(context="storage", name="PersistentVolume"),), writes_type=False
)
CONFIG_VALUE: Final = ReferenceField(types=_SETS, has_path=True)
CREDENTIAL: Final = ReferenceField(types=_SETS, has_path=True, preferred=_SECRET_SET)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRef:
    """An account as a user names it: `id` decides, `did` must agree with it, `name` is a note then."""

    id: ResourceId | None = None
    did: Did | None = None
    name: Name | None = None

    def __post_init__(self) -> None:
        if self.id is None and self.did is None and self.name is None:
            raise InvalidReference(text="expected the id, did or name of an account")

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read the string or the object form; raises `InvalidReference`."""
        try:
            target = _parse_account(value)
        except InvalidInput as error:
            raise InvalidReference(text=f"account: {error}; expected an id, a DID or a name") from error
        return cls(id=target.id, did=target.did, name=target.name)

    def plain(self) -> dict[str, object]:
        """Return the object form."""
        return _plain(id=self.id, did=self.did, name=self.name)

    def __str__(self) -> str:
        """Return the string form of what decides."""
        return str(self.id or self.did or self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountHandle:
    """An account of this node."""

    id: ResourceId
    did: Did
    name: Name

    @classmethod
    def from_plain(cls, value: object) -> Self:
        """Read what `plain` returns; raises `InvalidReference`."""
        account = AccountRef.parse(value)
        if account.id is None or account.did is None or account.name is None:
            raise InvalidReference(text="expected the id, did and name of an account")
        return cls(id=account.id, did=account.did, name=account.name)

    def plain(self) -> dict[str, object]:
        """Return the object that is stored."""
        return _plain(id=self.id, did=self.did, name=self.name)

    def reference(self) -> AccountRef:
        """Return the reference with the same fields."""
        return AccountRef(id=self.id, did=self.did, name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A resource as a user names it: `id` decides, `did` must agree with it, `name` and `account` are notes then."""

    type: TypeRef
    id: ResourceId | None = None
    did: Did | None = None
    name: Name | None = None
    account: AccountRef | None = None
    path: str | None = None
    """A key of the target, and names within its value, joined by dots."""

    def __post_init__(self) -> None:
        if self.id is None and self.did is None and self.name is None:
            raise InvalidReference(text="a type alone names no resource; expected id, did or name as well")
        if self.did is not None:
            _require_did_of(self.type, self.did)

    @classmethod
    def parse(cls, value: object, field: ReferenceField) -> Self:
        """Read the string or the object form of a field's reference; raises `InvalidReference`."""
        try:
            parse = _parse_string if isinstance(value, str) else _parse_object
            kind, path, target = parse(value, field)
            if field.has_path and not path:
                raise InvalidInput(text="a path is missing")
            if path is not None and not field.has_path:
                raise InvalidInput(text="a path is not possible")
            return cls(type=kind, path=path, **target._asdict())
        except InvalidInput as error:
            shown = f"{value!r}: " if isinstance(value, str) else ""
            raise InvalidReference(text=f"{shown}{error}; expected {field.form}") from error

    def plain(self, field: ReferenceField) -> dict[str, object]:
        """Return the object form."""
        return _plain(
            type=self.type if field.writes_type else None,
            id=self.id,
            did=self.did,
            name=self.name,
            account=self.account and self.account.plain(),
            path=self.path,
        )

    def __str__(self) -> str:
        """Return the string form of what decides."""
        named = f"{self.account}/{self.name}" if self.account else self.name
        return f"{self.type}:{self.id or self.did or named}" + (f"#{self.path}" if self.path else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """A resource of this node, as others store it; without an id it is unresolved, and names what is expected."""

    type: TypeUri
    id: ResourceId | None = None
    did: Did | None = None
    name: Name | None = None
    account: AccountHandle | AccountRef | None = None
    """A reference only if the account is unresolved."""
    path: str | None = None

    @property
    def is_resolved(self) -> bool:
        """Return whether the handle has an id, which is never given to another resource."""
        return self.id is not None

    @classmethod
    def from_plain(cls, value: object) -> Self:
        """Read what `plain` returns; raises `InvalidReference`."""
        texts = _texts(value, ("type", "id", "did", "name", "path"))
        target = _parse_identity(value, texts)
        account = target.account
        return cls(
            type=TypeUri.parse(texts.get("type", "")),
            id=target.id,
            did=target.did,
            name=target.name,
            account=AccountHandle.from_plain(account.plain()) if account and account.id else account,
            path=texts.get("path"),
        )

    def plain(self) -> dict[str, object]:
        """Return the object that is stored: `{type, id, did, name, account: {id, did, name}, path}`."""
        return _plain(
            type=self.type,
            id=self.id,
            did=self.did,
            name=self.name,
            account=self.account and self.account.plain(),
            path=self.path,
        )

    def reference(self) -> Reference:
        """Return the reference with the same fields, as the input form of a stored resource has it."""
        account = self.account.reference() if isinstance(self.account, AccountHandle) else self.account
        return Reference(
            type=self.type, id=self.id, did=self.did, name=self.name, account=account, path=self.path
        )


def is_type(type: TypeRef, uri: TypeUri) -> bool:
    """Return whether a type is one of the specification's, by its URI of any version or by its short name."""
    return type.identity == uri.identity if isinstance(type, TypeUri) else type == uri.name


def split_type(text: str) -> tuple[str | None, str]:
    """Return the type before the colon, None without one, and the rest of a reference or selector."""
    match = None if text.startswith(DID) else _TYPE.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def disagreements(reference: Reference, target: Handle) -> tuple[str, ...]:
    """Return a warning for each note that differs from the target; raises `InvalidReference` if the DID differs."""
    if reference.did and target.did and reference.did != target.did:
        raise InvalidReference(
            text=f"{target.type.name} {target.id} has the DID {target.did}, not {reference.did}"
        )
    notes = [("name", reference.name, target.name)]
    if reference.account and target.account:
        notes.append(("account", reference.account.name, target.account.name))
    return tuple(
        f"{key} is {actual}, not {note}; the id decides"
        for key, note, actual in notes
        if note is not None and note != actual
    )


def type_warning(reference: Reference, field: ReferenceField) -> str | None:
    """Return a warning if a type other than the preferred one is referred to."""
    if field.preferred is None or is_type(reference.type, field.preferred):
        return None
    return f"expected a {field.preferred.name}: only its values are stored encrypted"


_ABSENT: Final = object()


class _Target(NamedTuple):
    id: ResourceId | None = None
    did: Did | None = None
    name: Name | None = None
    account: AccountRef | None = None


def _parse_string(value: object, field: ReferenceField) -> tuple[TypeRef, str | None, _Target]:
    rest, mark, path = str(value).partition("#")
    kind, target = split_type(rest)
    return _require_type(kind, field), path if mark else None, _parse_target(target)


def _parse_object(value: object, field: ReferenceField) -> tuple[TypeRef, str | None, _Target]:
    texts = _texts(value, ("type", "id", "did", "name", "path"))
    if field.writes_type and "type" not in texts:
        raise InvalidInput(text="type is missing")
    return _require_type(texts.get("type"), field), texts.get("path"), _parse_identity(value, texts)


def _require_type(text: str | None, field: ReferenceField) -> TypeRef:
    """Return the type of a reference; raises `InvalidInput` unless the field may have it."""
    if text is None:
        if field.fixed_type is None:
            raise InvalidInput(text="the type of the target is missing")
        return field.fixed_type
    kind = parse_type_ref(text)
    if field.types and not any(is_type(kind, uri) for uri in field.types):
        raise InvalidInput(text=f"{text} cannot be referred to here")
    return kind


def _require_did_of(type: TypeRef, did: Did) -> None:
    if not any(is_type(type, uri) for uri in (ACCOUNT_TYPE, DATASET_TYPE)):
        raise InvalidReference(text=f"{type} has no DID; use the id or name of the resource")
    if is_type(type, DATASET_TYPE) and not did.is_odf:
        raise InvalidReference(text=f"{did} is not the DID of a dataset, which begins with did:odf:")


def _parse_target(text: str) -> _Target:
    account, slash, name = text.partition("/")
    if slash:
        return _Target(account=AccountRef.parse(account), name=parse_name(name))
    if text.startswith(DID):
        return _Target(did=Did.parse(text))
    return _Target(id=ResourceId.parse(text)) if is_uuid(text) else _Target(name=parse_name(text))


def _parse_account(value: object) -> _Target:
    if isinstance(value, str):
        if "/" in value:
            raise InvalidInput(text=f"{value!r} has a slash")
        return _parse_target(value)
    return _parse_identity({}, _texts(value, ("id", "did", "name"), and_account=False))


def _parse_identity(value: object, texts: Mapping[str, str]) -> _Target:
    account = value.get("account", _ABSENT) if isinstance(value, Mapping) else _ABSENT
    return _Target(
        id=ResourceId.parse(texts["id"]) if "id" in texts else None,
        did=Did.parse(texts["did"]) if "did" in texts else None,
        name=parse_name(texts["name"]) if "name" in texts else None,
        account=None if account is _ABSENT else AccountRef.parse(account),
    )


def _texts(value: object, keys: tuple[str, ...], *, and_account: bool = True) -> dict[str, str]:
    """Return the fields of an object that are strings; raises `InvalidInput` for others, but for `account`."""
    if not isinstance(value, Mapping):
        raise InvalidInput(text=f"expected a string or an object, got {value!r}")
    texts = {key: text for key, text in value.items() if key != "account" or not and_account}
    for key, text in texts.items():
        if key not in keys:
            raise InvalidInput(
                text=f"unknown field {key!r}; expected {', '.join(keys)}" + ", account" * and_account
            )
        if not isinstance(text, str):
            raise InvalidInput(text=f"{key}: expected a string, got {text!r}")
    return texts


def _plain(**parts: object) -> dict[str, object]:
    return {
        key: value if isinstance(value, dict) else str(value)
        for key, value in parts.items()
        if value is not None
    }
