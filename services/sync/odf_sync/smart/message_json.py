"""The JSON of messages (wire-facts §8.3).

The JSON does not name the type of its message: `exchange` knows which types may come next. Unknown fields are ignored;
optional fields may be null or missing. An archive is a list of numbers in JSON. It is converted in parts, because a
Python list of them would take eight times the memory. For the same reason the objects of a list are converted while the
JSON is parsed, and written one at a time.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_sync.smart import messages as msg

T = TypeVar("T")

UINT64_MAX: Final = (1 << 64) - 1
PART_CHARS: Final = 1 << 16  # of an archive's numbers that are converted at a time
# Of a message without its archive: a list of 250,000 objects has a million.
MAX_VALUES: Final = 2_000_000
_PAYLOAD: Final = re.compile(r'"payload"\s*:\s*\[([0-9,\s]*)\]')
_NO_PAYLOAD: Final = '"payload":[]'
_NO_PLACES: Final = '"object_transfer_strategies":[]'
_BLANK: Final = re.compile(r"\s*")
_NUMBERS: Final = tuple(str(number) for number in range(256))
_FAULTS: Final[Mapping[str, type[msg.Fault]]] = {
    fault.__name__: fault for fault in get_args(msg.Fault) if fault is not msg.UnknownFault
}


def encode(message: msg.Message) -> str:
    """Return the compact JSON of a message."""
    match message:
        case msg.MetadataReply(blocks=batch) | msg.NewBlocks(new_blocks=batch):
            starts = range(0, len(batch.payload), PART_CHARS)
            items = (numbers(batch.payload[start : start + PART_CHARS]) for start in starts)
            return "".join(with_items(message, items))
        case (
            msg.DownloadsReply(object_transfer_strategies=strategies)
            | msg.UploadsReply(object_transfer_strategies=strategies)
        ):
            return "".join(with_items(message, map(place_json, strategies)))
        case _:
            return _compact(_with_envelope(message))


def with_items(message: msg.Message, items: Iterable[str]) -> Iterator[str]:
    """Yield the JSON of a message in pieces, with `items` as the JSON of the elements of its list."""
    text = _compact(_with_envelope(message))
    mark = _NO_PLACES if _NO_PLACES in text else _NO_PAYLOAD
    before, _, after = text.partition(mark)
    yield before + mark[:-1]
    comma = ""
    for item in items:
        yield comma + item
        comma = ","
    yield mark[-1] + after


def _with_envelope(message: msg.Message) -> object:
    """Return the JSON value of a message in its envelope, such as `{"Ok": …}`; long lists are left empty."""
    match message:
        case msg.Refusal(fault=fault):
            return {"Err": {type(fault).__name__: _plain(fault)}}
        case msg.UploadsRunning():
            return {"details": {"Running": _plain(message)}}
        case msg.UploadsComplete():
            return {"details": "Complete"}
        case msg.DownloadsReply():
            return {"object_transfer_strategies": []}
        case msg.UploadsReply():
            return {"Ok": {"object_transfer_strategies": []}}
        case _:
            return {"Ok": _plain(message)} if _is_result(type(message)) else _plain(message)


def _compact(plain: object) -> str:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False)


def decode(text: str, candidates: Iterable[type[msg.Message]]) -> msg.Message:
    """Return the message in a JSON text, which must have the form of one of the `candidates`. Raises `InvalidInput`."""
    plain = _parse(text)
    forms = {_form(kind): kind for kind in candidates}
    for form, kind in sorted(forms.items(), reverse=True):  # an empty form fits everything: last
        if form in plain or not form:
            return _decode(kind, plain)
    raise InvalidInput(text=f"expected {' or '.join(sorted(forms))}", where="message")


def place_json(item: msg.Download | msg.Upload) -> str:
    """Return the JSON of the upload or download of one object."""
    return _compact(_plain(item))


def numbers(piece: bytes) -> str:
    """Return bytes of an archive as a comma-separated list of numbers, without brackets."""
    return ",".join([_NUMBERS[number] for number in piece])


def _form(kind: type[msg.Message]) -> str:
    """Return the name of the field by which messages of this type are recognized, empty if they have none."""
    if kind is msg.Refusal:
        return "Err"
    if kind in (msg.UploadsRunning, msg.UploadsComplete):
        return "details"
    if _is_result(kind):
        return "Ok"
    required = [field.name for field in fields(kind) if field.default is MISSING]
    return required[0] if required else ""


def _decode(kind: type[msg.Message], plain: Mapping[str, object]) -> msg.Message:
    if kind is msg.Refusal:
        return msg.Refusal(fault=_fault(plain["Err"]))
    if kind in (msg.UploadsRunning, msg.UploadsComplete):
        details = plain["details"]
        if details == "Complete":
            return msg.UploadsComplete()
        return _read(msg.UploadsRunning, _object(details, "details").get("Running"), "details.Running")
    return _read(kind, plain["Ok"] if _is_result(kind) else plain, "Ok" if _is_result(kind) else "message")


def _fault(plain: object) -> msg.Fault:
    """Return the error in a refusal, or `UnknownFault` with its JSON if its type or its fields are unknown."""
    for name, facts in plain.items() if isinstance(plain, dict) else ():
        if name in _FAULTS:
            with suppress(InvalidInput):
                return _read(_FAULTS[name], facts, f"Err.{name}")
    return msg.UnknownFault(text=json.dumps(plain))


def _is_result(kind: type[msg.Message]) -> bool:
    return getattr(kind, "is_result", False)


def _parse(text: str) -> Mapping[str, object]:
    """Return the parsed JSON object of a message.

    The payload, a long list of numbers, is converted separately, and objects of lists are converted during the parsing.
    """
    match = _PAYLOAD.search(text)
    payload = b""
    try:
        if match is not None:
            payload = _bytes(text, *match.span(1))
            text = text[: match.start(1)] + text[match.end(1) :]
        count = sum(map(text.count, "[{,"))
        if count > MAX_VALUES:
            raise InvalidInput(text=f"{count} values; at most {MAX_VALUES} are taken", where="message")
        plain = json.loads(text, object_hook=_object_file)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text=f"not a message: {str(error)[:200]}", where="message") from error
    for batch in plain.values() if isinstance(plain, dict) else ():
        if isinstance(batch, dict) and batch.get("payload") == []:
            batch["payload"] = payload
    return _object(plain, "message")


def _object_file(plain: dict[str, object]) -> object:
    """Return an element of a list of objects as an `ObjectFile`, which takes a fraction of a dictionary's memory."""
    return _read(msg.ObjectFile, plain, "object_file") if "physical_hash" in plain else plain


def _bytes(text: str, start: int, end: int) -> bytes:
    """Return the numbers in `text[start:end]` as bytes; raises `ValueError`."""
    if _BLANK.fullmatch(text, start, end):
        return b""
    octets = bytearray()
    while start <= end:
        comma = text.find(",", start + PART_CHARS, end)
        stop = end if comma == -1 else comma
        octets += bytes(int(number) for number in text[start:stop].split(","))
        start = stop + 1
    return bytes(octets)


def _plain(value: object) -> object:
    """Return a value as plain JSON data; bytes become an empty list, which the caller fills."""
    match value:
        case msg.Phase():
            side, _, name = value.partition("/")
            return {side: name}
        case Multihash():
            return str(value)
        case tuple():
            return [_plain(item) for item in value]
        case bytes():
            return []
        case _ if is_dataclass(value):
            members = {
                field_.name: getattr(value, field_.name)
                for field_ in fields(value)
                if _is_written(field_, value)
            }
            return {name: _plain(inner) for name, inner in members.items()}
        case _:
            return value


def _is_written(field: Field[Any], value: object) -> bool:
    """Return whether to write a field: always if the specification has it, an extension only if it is not None."""
    return dict(field.metadata) != msg.EXTENSION or getattr(value, field.name) is not None


def _read(kind: type[T], plain: object, where: str) -> T:
    """Return a dataclass from its JSON object; raises `InvalidInput`, which names the invalid field."""
    if isinstance(plain, kind):
        return plain
    members = _object(plain, where)
    hints = _hints(kind)  # type: ignore[arg-type]
    values = {
        field.name: _value(hints[field.name], members[field.name], f"{where}.{field.name}")
        for field in fields(kind)  # type: ignore[arg-type]
        if _is_given(field, members, where)
    }
    return kind(**values)


@cache
def _hints(kind: type[object]) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields, cached: `get_type_hints` is too slow to call for each listed object."""
    return get_type_hints(kind)


def _is_given(field: Field[Any], members: Mapping[str, object], where: str) -> bool:
    if field.name in members:
        return True
    if field.default is MISSING:
        raise InvalidInput(text="missing", where=f"{where}.{field.name}")
    return False


def _value(hint: Any, plain: object, where: str) -> object:  # noqa: ANN401 - a type, of any kind
    if isinstance(hint, UnionType):
        inner = next(type_ for type_ in get_args(hint) if type_ is not NoneType)
        return None if plain is None else _value(inner, plain, where)
    if get_origin(hint) is tuple:
        if not isinstance(plain, list):
            raise InvalidInput(text="expected a list", where=where)
        return tuple(_value(get_args(hint)[0], item, f"{where}[{n}]") for n, item in enumerate(plain))
    if hint is msg.Phase:
        return _phase(plain, where)
    if is_dataclass(hint) and hint is not Multihash:
        return _read(hint, plain, where)  # type: ignore[arg-type]
    return _scalar(hint, plain, where)


def _scalar(hint: Any, plain: object, where: str) -> object:  # noqa: ANN401 - a type
    if hint is Multihash or issubclass(hint, StrEnum):
        if isinstance(plain, str):
            try:
                return Multihash.parse(plain) if hint is Multihash else hint(plain)
            except (InvalidInput, ValueError) as error:
                raise InvalidInput(text=str(error)[:200], where=where) from error
    elif type(plain) is hint and (hint is not int or 0 <= plain <= UINT64_MAX):  # type: ignore[operator]
        return plain
    raise InvalidInput(text=f"expected {hint.__name__}, got {str(plain)[:80]!r}", where=where)


def _phase(plain: object, where: str) -> msg.Phase:
    for side, name in _object(plain, where).items():
        try:
            return msg.Phase(f"{side}/{name}")
        except ValueError as error:
            raise InvalidInput(text=f"unknown phase {side}/{name}"[:200], where=where) from error
    raise InvalidInput(text="expected a phase", where=where)


def _object(plain: object, where: str) -> Mapping[str, object]:
    if not isinstance(plain, dict):
        raise InvalidInput(text=f"expected an object, got {str(plain)[:80]!r}", where=where)
    return plain
