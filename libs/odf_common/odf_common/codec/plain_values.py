"""Conversion between metadata objects and the plain values of YAML and JSON (wire-facts §3.1, §3.2).

Keys are camelCase. Union members have a `kind` without the union's prefix, hashes and ids are multibase strings, and
times are RFC 3339. Tags are accepted in canonical form, in camelCase and in lower case (RFC-013). Errors contain the
path and, for an unknown key, the most similar known key.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

from odf_common.codec.model_schema import (
    EVENTS,
    Boolean,
    Bytes,
    EnumShape,
    Field,
    Integer,
    Leaf,
    MapOf,
    OneOf,
    Shape,
    Spelled,
    TableShape,
    Text,
    TimestampShape,
    Vector,
    fields_of,
    union_with,
)
from odf_common.codec.yaml_syntax import child, json_value
from odf_common.errors import InvalidInput, nearest
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import UnknownEvent
from odf_common.metadata.scalars import ExtraAttributes, Timestamp

T = TypeVar("T")
EXTENSION: Final = "Ext"  # the kind of a member that its `$schema` selects
BARE_UNIONS: Final = frozenset({"DataType", "EventTimeSource", "SourceCaching"})
"""Unions of which a member may be a tag alone in resources; in manifests of events every union has it."""
EXTRA_KEY: Final = "[a-zA-Z0-9.-]+/[a-zA-Z0-9_-]+"
"""Pattern of the names of attributes in resources."""
UNKNOWN: Final = "Unknown"  # the kind of an event that this version cannot read


def to_plain(value: object) -> dict[str, Any]:
    """Return a metadata object as a dict for YAML or JSON; a union member includes its `kind`."""
    if isinstance(value, UnknownEvent):
        raw = base64.b64encode(value.raw).decode()
        return {"kind": UNKNOWN, "discriminator": value.discriminator, "reason": value.reason, "raw": raw}
    cls: type = type(value)
    union = union_with(cls)
    plain: dict[str, Any] = {"kind": tag_of(cls, union)} if union else {}
    for field in fields_of(cls):
        content = getattr(value, field.name)
        if content is not None:
            plain[camel(field.name)] = _plain(content)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Multihash | DatasetId | Timestamp):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, ExtraAttributes):
        return _attributes(value)
    if isinstance(value, int):
        return getattr(value, "name", None) or int(value)
    return to_plain(value)


def _attributes(extra: ExtraAttributes) -> Any:
    try:
        return json_value(extra.entries, "")
    except (ValueError, InvalidInput):
        return extra.entries  # a block may have any string here


def from_plain(cls: type[T], plain: object, where: str = "") -> T:
    """Return the object of class `cls` that `plain` describes; raises `InvalidInput` whose `where` is the path."""
    return _Reader().value_of(cls, plain, where)


def union_from_plain(union: OneOf, plain: object, where: str = "") -> Any:
    """Return the member of `union` that `plain` describes; raises `InvalidInput` whose `where` is the path."""
    return _Reader().member(union, plain, where)


def read_all(
    shape: Shape,
    plain: object,
    where: str,
    problems: list[InvalidInput],
    contradiction: Callable[[object], str | None] = lambda _: None,
) -> Any:
    """Return the value of a shape that `plain` describes; or None, after every error was appended to `problems`.

    It is stricter than other readers: tags in their canonical spelling only, no null, no meanings of former versions.
    `contradiction` returns the error of a part whose fields are valid alone.
    """
    found: list[InvalidInput] = []
    value = _Reader(found, contradiction).item(shape, plain, where)
    problems += found
    return None if found else value


def map_spelled(shape: Shape, plain: Any, change: Callable[[Spelled, Any, str], Any], where: str = "") -> Any:
    """Return a copy of a valid plain value in which each value of a `Spelled` shape is replaced by `change`.

    `change` is called with the shape, the plain value and its path.
    """
    match shape:
        case Spelled():
            return change(shape, plain, where)
        case TableShape(of=of) if of is not ExtraAttributes and isinstance(plain, Mapping):
            return _map_fields(of, plain, change, where)
        case OneOf() if isinstance(plain, Mapping):
            return _map_fields(_member_of(shape, plain), plain, change, where)
        case Vector(of=of):
            return [map_spelled(of, item, change, child(where, n)) for n, item in enumerate(plain)]
        case MapOf(of=of):
            return {key: map_spelled(of, item, change, child(where, key)) for key, item in plain.items()}
        case _:
            return plain


def _map_fields(
    cls: type, plain: Mapping[str, Any], change: Callable[[Spelled, Any, str], Any], where: str
) -> dict[str, Any]:
    def value(key: str, content: object) -> object:
        if content is None or (key in {"kind", "$schema"} and key not in keys_of(cls)):
            return content
        return map_spelled(_field_for(cls, key, content, where).shape, content, change, child(where, key))

    return {key: value(key, content) for key, content in plain.items()}


def _member_of(union: OneOf, plain: Mapping[str, Any]) -> type:
    if plain["kind"] == EXTENSION and union.extensions:
        return dict(union.extensions)[plain["$schema"]]
    return _members_by_tag(union)[plain["kind"]]


class _Reader:
    """Reads plain values; with a list of problems, it continues after errors and accepts only canonical tags."""

    def __init__(
        self,
        problems: list[InvalidInput] | None = None,
        contradiction: Callable[[object], str | None] = lambda _: None,
    ) -> None:
        self._problems, self._contradiction = problems, contradiction

    @property
    def _is_strict(self) -> bool:
        return self._problems is not None

    def attempt(self, read: Callable[[], Any]) -> Any:
        """Return the result of `read`; None if it failed and the error was added to the problems."""
        try:
            return read()
        except InvalidInput as error:
            if self._problems is None:
                raise
            self._problems.append(error)
            return None

    def value_of(self, cls: type[T], plain: object, where: str) -> T:
        """Return the object of class `cls` that `plain` describes."""
        union = union_with(cls)
        value = self.member(union, plain, where) if union else self._record(cls, plain, where)
        if not isinstance(value, cls) and not self._problems:
            raise InvalidInput(
                text=f"expected {tag_of(cls, union)}, got {tag_of(type(value), union)}", where=where
            )
        return cast("T", value)

    def _record(self, cls: type, plain: object, where: str, *, ignoring: Collection[str] = ()) -> Any:
        if cls is ExtraAttributes:
            return self._extra(plain, where)
        if not isinstance(plain, Mapping):
            raise InvalidInput(text=f"expected a mapping, got {_describe(plain)}", where=where)
        before = len(self._problems or ())
        values: dict[str, Any] = {}
        for key, content in plain.items():
            if key not in ignoring:
                self.attempt(partial(self._entry, cls, values, key, content, where))
        for field in fields_of(cls):
            if not field.is_optional and field.name not in values:
                self.attempt(partial(_refuse_missing, camel(field.name), where))
        if len(self._problems or ()) > before:
            return None
        value = cls(**values)
        if text := self._contradiction(value):
            raise InvalidInput(text=text, where=where)
        return value

    def _extra(self, plain: object, where: str) -> ExtraAttributes:
        for key in plain if self._is_strict and isinstance(plain, Mapping) else ():
            if not re.fullmatch(EXTRA_KEY, key):
                text = f"expected a name such as example.com/unit, got {key!r}"
                raise InvalidInput(text=text, where=child(where, key))
        return _extra(plain, where)

    def _entry(self, cls: type, values: dict[str, Any], key: str, content: object, where: str) -> None:
        field = _field_for(cls, key, content, where)
        name = camel(field.name)
        if self._is_strict and name != key:
            raise InvalidInput(
                text=f"{key!r} of this form is called {name!r}", where=child(where, key), hint=name
            )
        if field.name in values:
            raise InvalidInput(text=f"{key!r} is also given under another name", where=where)
        if content is None and field.is_optional:
            is_json = isinstance(field.shape, Spelled) and field.shape.name == "json"
            if self._is_strict and not is_json:
                raise InvalidInput(text="null is no value; leave the key out", where=child(where, key))
            return
        values[field.name] = None  # it is given, even if it is wrong
        values[field.name] = self._value(field.shape, content, child(where, key))

    def member(self, union: OneOf, plain: object, where: str) -> Any:
        """Return the member of `union` that `plain` describes."""
        if isinstance(plain, str) and (not self._is_strict or union.prefix in BARE_UNIONS):
            plain = {"kind": plain}  # short form of members without required fields
        if not isinstance(plain, Mapping):
            text, hint = f"expected a mapping with 'kind', got {_describe(plain)}", ""
            if isinstance(plain, str):
                hint = f"{{kind: {plain}}}"
            raise InvalidInput(text=text, where=where, hint=hint)
        tag = plain.get("kind")
        if not isinstance(tag, str):
            text = f"'kind' is missing; expected one of {_keys_text(_tags(union))}"
            raise InvalidInput(text=text, where=where)
        if tag == EXTENSION and union.extensions:
            return self._extension(union, plain, where)
        cls = (_members_by_tag(union) if self._is_strict else _spellings(union)).get(tag)
        if cls is None and tag == UNKNOWN and union is EVENTS:
            return _unknown(plain, where)
        if cls is None:
            raise _unknown_tag(tag, _tags(union), where)
        return self._record(cls, plain, where, ignoring=("kind",))

    def _extension(self, union: OneOf, plain: Mapping[str, Any], where: str) -> Any:
        extensions = dict(union.extensions)
        cls = extensions.get(str(plain.get("$schema")))
        if cls is None:
            text = f"expected the $schema of an extension: one of {_keys_text(extensions)}"
            raise InvalidInput(text=text, where=child(where, "$schema"))
        return self._record(cls, plain, where, ignoring=("kind", "$schema"))

    def _value(self, shape: Shape, plain: object, where: str) -> Any:
        match shape:
            case TableShape(of=of):
                return self._record(of, plain, where)
            case OneOf():
                return self.member(shape, plain, where)
            case Vector(of=of):
                items = _expect(list, "a list", plain, where)
                return tuple([self.item(of, item, child(where, n)) for n, item in enumerate(items)])
            case MapOf(of=of):
                entries = _expect(dict, "a mapping", plain, where)
                return {key: self.item(of, item, child(where, key)) for key, item in entries.items()}
            case EnumShape(of=of):
                return _choice(shape, plain, where, of.__members__ if self._is_strict else _choices(of))
            case _:
                return _leaf(shape, plain, where)

    def item(self, shape: Shape, plain: object, where: str) -> Any:
        """Return the value of a shape; None if it failed and the error was added to the problems."""
        return self.attempt(lambda: self._value(shape, plain, where))


def _refuse_missing(key: str, where: str) -> None:
    raise InvalidInput(text=f"{key!r} is missing", where=where)


def _field_for(cls: type, key: str, content: object, where: str) -> Field:
    """Return the field for a key; for the key `schema` it depends on the type of the content."""
    keys = keys_of(cls)
    former = formerly_schema(cls)
    if key == "schema" and former is not None:
        kind = list if isinstance(former.shape, Vector) else str
        return former if isinstance(content, kind) else keys[key]
    if key not in keys:
        near = _nearest(key, keys)
        text = f"unknown key {key!r}{_suggestion(near)}"
        raise InvalidInput(text=text, where=child(where, key), hint=near or "")
    return keys[key]


@cache
def formerly_schema(cls: type) -> Field | None:
    """Return the field that the key `schema` meant before 0.37: DDL in read steps, Arrow bytes in SetDataSchema."""
    keys = keys_of(cls)
    return keys.get("ddlSchema") or keys.get("rawArrowSchema")


@cache
def keys_of(cls: type) -> dict[str, Field]:
    """Return the fields of a class by their keys in manifests."""
    return {camel(field.name): field for field in fields_of(cls)}


def _unknown_tag(tag: str, tags: Collection[str], where: str) -> InvalidInput:
    near = _nearest(tag, tags)
    text = f"unknown kind {_describe(tag)}{_suggestion(near)}; expected one of {_keys_text(tags)}"
    return InvalidInput(text=text, where=child(where, "kind"), hint=near or "")


def _unknown(plain: Mapping[str, Any], where: str) -> UnknownEvent:
    discriminator, reason, raw = (plain.get(key) for key in ("discriminator", "reason", "raw"))
    if not (isinstance(discriminator, int) and isinstance(reason, str) and isinstance(raw, str)):
        raise InvalidInput(text="an event of kind Unknown has to be copied with all its fields", where=where)
    try:
        content = base64.b64decode(raw, validate=True)
    except ValueError as error:
        raise InvalidInput(text=f"not base64: {error}", where=child(where, "raw")) from error
    return UnknownEvent(discriminator=discriminator, reason=reason, raw=content)


def tag_of(cls: type, union: OneOf | None) -> str:
    """Return the `kind` of a union member: the name of its class without the union's prefix."""
    return cls.__name__.removeprefix(union.prefix if union else "")


@cache
def _tags(union: OneOf) -> tuple[str, ...]:
    return tuple(tag_of(member, union) for member in union.members)


@cache
def _members_by_tag(union: OneOf) -> dict[str, type]:
    return dict(zip(_tags(union), union.members, strict=True))


@cache
def _spellings(union: OneOf) -> dict[str, type]:
    return {
        spelling: member
        for tag, member in zip(_tags(union), union.members, strict=True)
        for spelling in tag_spellings(tag)
    }


def tag_spellings(tag: str) -> tuple[str, str, str]:
    """Return the accepted spellings of a tag: canonical, camelCase, lower case (RFC-013)."""
    return tag, tag[0].lower() + tag[1:], tag.lower()


def _leaf(shape: Leaf, plain: object, where: str) -> Any:
    match shape:
        case Integer():
            return _integer(shape, plain, where)
        case Boolean():
            return _expect(bool, "true or false", plain, where)
        case Text():
            return _text(plain, where)
        case Spelled(read=read):
            return _read_spelled(read, plain, where)
        case Bytes() | TimestampShape():
            return _parse(shape, plain, where)


def _read_spelled(read: Callable[[object], object], plain: object, where: str) -> Any:
    try:
        return read(plain)
    except InvalidInput as error:
        inner = error.where or ""
        path = where + (inner if inner.startswith("[") or not inner else f".{inner}")
        raise error.with_facts(where=path) from error


def _expect(kind: type[T], what: str, plain: object, where: str) -> T:
    if not isinstance(plain, kind):
        raise InvalidInput(text=f"expected {what}, got {_describe(plain)}", where=where)
    return plain


def _text(plain: object, where: str) -> str:
    if isinstance(plain, bool | int | float):
        raise InvalidInput(text=f"expected a string, got {_describe(plain)}; put it in quotes", where=where)
    text = _expect(str, "a string", plain, where)
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(text="half a surrogate pair is not a valid string", where=where)
    return text


def _integer(shape: Integer, plain: object, where: str) -> int:
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise InvalidInput(text=f"expected an integer, got {_describe(plain)}", where=where)
    bits = 8 * shape.width.size
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if shape.width.signed else (0, (1 << bits) - 1)
    if not low <= plain <= high:
        raise InvalidInput(text=f"{plain} is not between {low} and {high}", where=where)
    return plain


@cache
def _choices(of: type[IntEnum]) -> dict[str, IntEnum]:
    return {way: choice for choice in of for way in tag_spellings(choice.name)}


def _choice(shape: EnumShape, plain: object, where: str, names: Mapping[str, IntEnum]) -> IntEnum:
    members = _keys_text(shape.of.__members__)
    tag = _expect(str, f"one of {members}", plain, where)
    if tag not in names:
        near = _nearest(tag, shape.of.__members__)
        text = f"unknown {shape.of.__name__} {tag!r}; expected one of {members}"
        raise InvalidInput(text=text, where=where, hint=near or "")
    return names[tag]


def _parse(shape: Bytes | TimestampShape, plain: object, where: str) -> Any:
    text = _text(plain, where)
    try:
        if isinstance(shape, TimestampShape):
            return Timestamp.parse(text)
        if shape.of is bytes:
            return base64.b64decode(text, validate=True)
        return shape.of.parse(text)  # type: ignore[union-attr]
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=where) from error
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(text=f"expected base64, got {text[:40]!r}", where=where) from error


def _extra(plain: object, where: str) -> ExtraAttributes:
    attributes = _expect(dict, "a mapping of attributes", plain, where)
    return ExtraAttributes(json.dumps(attributes, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def camel(name: str) -> str:
    """Return the key in manifests for the name of a field."""
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


# Names of the former revision of RFC-018, and of other systems, that are not like ours.
_FORMER_NAMES: Final = {"Cron": "Schedule", "EthereumLogs": "EvmLogs", "steps": "tasks"}


def _nearest(key: str, keys: Collection[str]) -> str | None:
    former = _FORMER_NAMES.get(key)
    return former if former is not None and former in keys else nearest(key, keys)


def _suggestion(near: str | None) -> str:
    return f"; did you mean {near!r}?" if near else ""


def _keys_text(keys: Iterable[str]) -> str:
    return ", ".join(keys)


def _describe(plain: object) -> str:
    if plain is None:
        return "nothing"
    if isinstance(plain, Mapping):
        return "a mapping"
    if isinstance(plain, list):
        return "a list"
    text = json.dumps(plain, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
