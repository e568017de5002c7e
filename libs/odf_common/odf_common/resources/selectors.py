"""Selectors: which resources a flow or a rule is for, decided again each time that it is asked.

A selector is stored as it is written and never resolved to ids, so renaming or labelling a resource moves it in or out
at once. Who may see a resource is decided by the caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Alias, Name, NamePattern, parse_pattern
from odf_common.resources.filters import (
    EVERYTHING,
    All,
    Filter,
    FilterKey,
    ValueIn,
    holds,
    parse_filter,
    required_keys,
    required_values,
)
from odf_common.resources.labels import TypeLookup, label_key
from odf_common.resources.references import DATASET_TYPE, AccountHandle, AccountRef, split_type
from odf_common.resources.scalar_formats import (
    Did,
    ResourceId,
    TypeIdentity,
    TypeUri,
    is_uuid,
    parse_type_ref,
)

ALL_ACCOUNTS: Final = "%"
AccountScope: TypeAlias = AccountRef | Literal["%"] | None
"""An account, all accounts, or the owner of the resource that has the selector."""
DATASET_KIND: Final = TypeUri(context="dataset", name="DatasetKind")
KINDS: Final = ("Root", "Derivative")
_NAMES: Final = ("name", "account")
_IDS: Final = ("id", "did")
HEADERS: Final = (*_NAMES, *_IDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A resource as far as a selector looks at it."""

    type: TypeIdentity
    id: ResourceId
    name: Name
    did: Did | None = None
    account: AccountHandle
    labels: Mapping[str, object]
    """All labels, those of controllers too, by the key of `label_key`."""
    is_deleted: bool = False
    """Whether its deletion was requested."""

    def values(self, key: str) -> tuple[object, ...]:
        """Return the values of a header or a label as filters compare them; none if it is absent."""
        match key:
            case "name":
                return (self.name.key,)
            case "id":
                return (self.id,)
            case "did":
                return (self.did,) if self.did else ()
            case "account":
                return (self.account.name.key, self.account.id, self.account.did.lower())
            case _:
                return (self.labels[key],) if key in self.labels else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexNeeds:
    """Conditions of a selector that an index can answer; every resource that matches meets them."""

    type: TypeIdentity
    account: AccountRef | None
    """None: all accounts."""
    id: ResourceId | None
    name: str
    """A pattern in which `%` stands for any characters; without case."""
    labels: Mapping[str, object]
    """Values of labels, compared as JSON."""
    label_keys: frozenset[str]
    """Labels that exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A choice of resources of one type; all conditions hold for those that match."""

    type: TypeIdentity
    account: AccountScope = None
    """All accounts may only be selected by administrators of a node."""
    id: ResourceId | None = None
    name: NamePattern | None = None
    labels: Filter = EVERYTHING
    warnings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: object, lookup: TypeLookup) -> Self:
        """Read a ResourceSelector: an object, or `Type:[account/]pattern`; raises `InvalidInput`."""
        if isinstance(value, str):
            kind, rest = split_type(value)
            if kind is None:
                raise _malformed_selector(value, "Dataset:[account/]pattern, with a type")
            return cls._from_string(rest, _require_type(kind, lookup))
        fields = _require_fields(value, ("type", "account", "id", "name", "labels"))
        if not isinstance(fields.get("type"), str):
            raise InvalidInput(where="type", text=f"expected the name of a type, got {fields.get('type')!r}")
        return cls._from_object(fields, _require_type(str(fields["type"]), lookup), lookup)

    @classmethod
    def parse_of_datasets(cls, value: object, lookup: TypeLookup) -> Self:
        """Read a DatasetSelector: an object, or `[Dataset:][account/]pattern`; raises `InvalidInput`."""
        if isinstance(value, str):
            kind, rest = split_type(value)
            if kind is not None and _require_type(kind, lookup) != DATASET_TYPE.identity:
                raise _malformed_selector(value, "[Dataset:][account/]pattern")
            return cls._from_string(rest, DATASET_TYPE.identity)
        fields = _require_fields(value, ("account", "id", "name", "labels", "kind"))
        return cls._from_object(fields, DATASET_TYPE.identity, lookup)

    @classmethod
    def _from_string(cls, text: str, type: TypeIdentity) -> Self:
        if is_uuid(text):
            return cls(type=type, id=ResourceId.parse(text))
        account, slash, pattern = text.rpartition("/")
        return cls(type=type, name=_pattern(pattern), account=_scope(account) if slash else None)

    @classmethod
    def _from_object(cls, fields: Mapping[str, object], type: TypeIdentity, lookup: TypeLookup) -> Self:
        parser = _LabelKeys(type, lookup)
        labels = parse_filter(fields.get("labels", {}), parser.parse, where="labels")
        if "kind" in fields:
            if fields["kind"] not in KINDS:
                raise InvalidInput(where="kind", text=f"expected Root or Derivative, got {fields['kind']!r}")
            labels = All((ValueIn(str(DATASET_KIND.identity), (fields["kind"],)), labels))
        return cls(
            type=type,
            id=ResourceId.parse(_require_text(fields, "id")) if "id" in fields else None,
            name=_pattern(_require_text(fields, "name")) if "name" in fields else None,
            labels=labels,
            warnings=tuple(parser.warnings),
            account=_scope(fields["account"]) if "account" in fields else None,
        )

    def matches(self, candidate: Candidate, owner: AccountHandle) -> bool:
        """Return whether a resource is selected by a selector in a resource of `owner`."""
        scope = self._scope(owner)
        return (
            not candidate.is_deleted
            and self.type == candidate.type
            and (scope is None or _is_account(scope, candidate.account))
            and self.id in (None, candidate.id)
            and (self.name is None or self.name.matches(Alias(dataset=candidate.name)))
            and holds(self.labels, candidate.values)
        )

    def index_needs(self, owner: AccountHandle) -> IndexNeeds:
        """Return the conditions by which a store may find the candidates."""
        single = {one.key: one.values[0] for one in required_values(self.labels) if len(one.values) == 1}
        return IndexNeeds(
            type=self.type,
            account=self._scope(owner),
            id=self.id,
            name=self.name.dataset if self.name else "%",
            labels={key: value for key, value in single.items() if key not in HEADERS},
            label_keys=required_keys(self.labels).difference(HEADERS),
        )

    def _scope(self, owner: AccountHandle) -> AccountRef | None:
        """Return the account whose resources match; None: all accounts."""
        return None if self.account == ALL_ACCOUNTS else self.account or owner.reference()


class _LabelKeys:
    """Reads the keys of a filter over resources of one type, and collects warnings."""

    def __init__(self, type: TypeIdentity, lookup: TypeLookup) -> None:
        self.type = type
        self.lookup = lookup
        self.warnings: list[str] = []

    def parse(self, text: str) -> FilterKey:
        if text in HEADERS:
            return FilterKey(text, is_name=text in _NAMES)
        if text == "kind" and self.type == DATASET_TYPE.identity:
            self.warnings.append("the label `kind` is called `datasetKind`")
            return FilterKey(str(DATASET_KIND.identity))
        return FilterKey(label_key(text, self.lookup))


def _is_account(reference: AccountRef, account: AccountHandle) -> bool:
    """Return whether a reference means an account: its id decides, then its DID, then its name."""
    if reference.id is not None:
        return reference.id == account.id
    return reference.did == account.did if reference.did else reference.name == account.name


def _scope(value: object) -> AccountScope:
    return ALL_ACCOUNTS if value == ALL_ACCOUNTS else AccountRef.parse(value)


def _pattern(text: str) -> NamePattern:
    pattern = parse_pattern(text)
    if pattern.account is not None:
        raise InvalidInput(where="name", text=f"{text!r} has an account; give it in the field `account`")
    return pattern


def _require_type(text: str, lookup: TypeLookup) -> TypeIdentity:
    uri = lookup(parse_type_ref(text))
    if uri is None:
        raise InvalidInput(text=f"the node knows no type {text}")
    return uri.identity


def _require_fields(value: object, names: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidInput(text=f"expected a string or an object, got {value!r}")
    unknown = next((name for name in value if name not in names), None)
    if unknown is not None:
        raise InvalidInput(where=str(unknown), text=f"unknown field; expected {', '.join(names)}")
    return value


def _require_text(fields: Mapping[str, object], name: str) -> str:
    text = fields[name]
    if not isinstance(text, str):
        raise InvalidInput(where=name, text=f"expected a string, got {text!r}")
    return text


def _malformed_selector(text: str, form: str) -> InvalidInput:
    return InvalidInput(text=f"{text!r} is not a selector; expected {form}")
