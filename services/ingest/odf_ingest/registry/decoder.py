"""Decodes messages with the schemas whose ids they contain. Schemas are fetched once and cached."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepNdJson
from odf_ingest.message_columns import KEY_SCHEMA, VALUE_SCHEMA, Envelope, KeyFormat, MessageColumns
from odf_ingest.prepare.batch import BadRecord, MessageBatch
from odf_ingest.prepare.debezium_values import with_logical_types
from odf_ingest.prepare.plan import Plan
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.read.types.kinds import DecodedJson
from odf_ingest.registry.avro import avro_decoder
from odf_ingest.registry.client import RegistryAddress, RegistryClient, Schema
from odf_ingest.registry.protobuf import ProtobufDecoder
from odf_ingest.source_settings import SourceSettings

MAGIC_ID: Final = 0  # an id of four bytes follows
MAGIC_GUID: Final = 1  # a GUID of 16 bytes follows
ID_END: Final = 5
GUID_END: Final = 17
MAX_ID: Final = 2**31 - 1  # ids are positive 32-bit integers
MAX_SCHEMAS: Final = 1000  # kept per registry
MAX_REGISTRIES: Final = 100
RETRY_SECONDS: Final = 60.0  # after which a schema that cannot be used is fetched again

Decode: TypeAlias = Callable[[bytes], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedDecoder:
    """The decoder of a schema, or the error of fetching it, which is cached until a time (seconds, monotonic)."""

    decode: Decode | None = None
    why: str = ""
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaUse:
    """The purpose for which a schema is used."""

    is_key: bool = False
    """Whether it is the schema of a key, which may be a single value."""
    is_debezium: bool = False
    """Whether messages are from Debezium, whose time types have their own names."""


USUAL: Final = SchemaUse()


class Decoder:
    """Decodes messages with the schemas of one registry; thread-safe."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._cached: OrderedDict[tuple[int | UUID, SchemaUse], _CachedDecoder] = OrderedDict()
        self._mutex = threading.Lock()

    def decode(
        self, values: Sequence[bytes | None], use: SchemaUse = USUAL
    ) -> tuple[MessageBuffer, dict[int, str]]:
        """Return the messages as JSON, and by index the reasons for bad messages, which are replaced by tombstones.

        Raises `RegistryUnavailable`.
        """
        decoded: list[bytes | None] = []
        faults: dict[int, str] = {}
        for row, value in enumerate(values):
            try:
                decoded.append(None if value is None else self._json(value, use))
            except InvalidInput as error:
                faults[row] = str(error)
                decoded.append(None)
        return MessageBuffer.pack(decoded), faults

    def _json(self, value: bytes, use: SchemaUse) -> bytes:
        name, payload = _split_name(value)
        try:
            return self._schema(name, use)(payload).encode()
        except InvalidInput as error:
            raise InvalidInput(where=f"schema {name}", text=str(error)) from error

    def _schema(self, name: int | UUID, use: SchemaUse) -> Decode:
        if isinstance(name, int) and name > MAX_ID:
            raise InvalidInput(text="does not exist: the id is too large")
        with self._mutex:
            cached = self._cached.get((name, use))
        if cached is None or (cached.decode is None and cached.until < time.monotonic()):
            cached = self._fetch(name, use)
            with self._mutex:
                self._cached[name, use] = cached
                self._cached.move_to_end((name, use))
                while len(self._cached) > MAX_SCHEMAS:
                    self._cached.popitem(last=False)
        if cached.decode is None:
            raise InvalidInput(text=cached.why)
        return cached.decode

    def _fetch(self, name: int | UUID, use: SchemaUse) -> _CachedDecoder:
        try:
            return _CachedDecoder(decode=_decoder(self._client.schema(name), use))
        except InvalidInput as error:
            return _CachedDecoder(why=str(error), until=time.monotonic() + RETRY_SECONDS)


class Registries:
    """Decoders by registry; thread-safe."""

    def __init__(self) -> None:
        self._decoders: OrderedDict[RegistryAddress, Decoder] = OrderedDict()
        self._mutex = threading.Lock()

    def decoder(self, settings: SourceSettings) -> Decoder | None:
        """Return the decoder for the registry in a source's settings; None if they have none."""
        if not settings.schema_registry:
            return None
        address = RegistryAddress(
            url=settings.schema_registry,
            user=settings.schema_registry_user,
            password=settings.schema_registry_password,
            ca=settings.schema_registry_ca,
        )
        with self._mutex:
            decoder = self._decoders.setdefault(address, Decoder(RegistryClient(address)))
            self._decoders.move_to_end(address)
            while len(self._decoders) > MAX_REGISTRIES:
                self._decoders.popitem(last=False)
        return decoder


def _split_name(value: bytes) -> tuple[int | UUID, bytes]:
    """Return the id or GUID of a message's schema, and the payload. Raises `InvalidInput`."""
    if len(value) >= ID_END and value[0] == MAGIC_ID:
        return int.from_bytes(value[1:ID_END], "big"), value[ID_END:]
    if len(value) >= GUID_END and value[0] == MAGIC_GUID:
        return UUID(bytes=value[1:GUID_END]), value[GUID_END:]
    text = (
        "has no schema id: a message of a schema registry, or its header, begins with a zero byte and four bytes of "
        "the id, or with the byte 1 and 16 bytes of the GUID"
    )
    raise InvalidInput(text=text)


def _decoder(schema: Schema, use: SchemaUse) -> Decode:
    match schema.kind:
        case "AVRO":
            return avro_decoder(_of_debezium(schema) if use.is_debezium else schema, is_key=use.is_key)
        case "PROTOBUF":
            return ProtobufDecoder(schema)
        case "JSON":
            return _text
        case other:
            raise InvalidInput(text=f"is of the type {other!r}; this node reads AVRO, PROTOBUF and JSON")


def _of_debezium(schema: Schema) -> Schema:
    try:
        references = {name: with_logical_types(text) for name, text in schema.references.items()}
        return replace(schema, text=with_logical_types(schema.text), references=references)
    except (ValueError, RecursionError):
        return schema  # the decoder says what is wrong with it


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(text="the payload is not UTF-8 text") from error


REGISTRY_SETTING: Final = "schemaRegistry"
UNREADABLE: Final = b"\xff"  # no JSON, in place of a message that cannot be decoded


def json_step(read: ReadStep) -> ReadStepNdJson:
    """Return the read step of a source whose messages name schemas; raises `InvalidInput` unless it is NdJson."""
    if isinstance(read, ReadStepNdJson):
        return read
    kind = type(read).__name__.removeprefix("ReadStep")
    text = f"messages of a schema registry are read by a source with `kind: NdJson`, this one has {kind}"
    raise InvalidInput(where=REGISTRY_SETTING, text=text)


def decode_batch(
    decoder: Decoder,
    plan: Plan,
    batch: MessageBatch,
    prepare: Callable[[Plan, MessageBatch], PreparedRecords],
) -> PreparedRecords:
    """Return the result of `prepare` for the decoded messages. Bad messages have their original bytes.

    A schema id in a header is prepended to the bytes, also of bad messages, so that dead letters can be read again.

    Raises `RegistryUnavailable`, and `InvalidInput` if the source does not read NdJson.
    """
    read = json_step(plan.source.read)
    reasons: dict[tuple[int, int], str] = {}
    raw: dict[tuple[int, int], bytes | None] = {}
    parts = []
    framed = [_frame(part.values, part.headers, VALUE_SCHEMA) for part in batch.parts]
    use = SchemaUse(is_debezium=batch.columns.envelope is Envelope.DEBEZIUM)
    for part, payloads in zip(batch.parts, framed, strict=True):
        values, faults = _readable(partial(decoder.decode, use=use), payloads)
        keys = part.keys
        if batch.columns.key_format is KeyFormat.REGISTRY:
            framed_keys = _frame(part.keys, part.headers, KEY_SCHEMA)
            texts, wrong = _readable(partial(decoder.decode, use=replace(use, is_key=True)), framed_keys)
            keys = _objects(texts, batch.columns)
            faults = {row: f"its key: {why}" for row, why in wrong.items()} | faults
        reasons |= {(part.partition, part.offsets[row]): why for row, why in faults.items()}
        parts.append(replace(part, values=values, keys=keys))
    json = DecodedJson(ddl_schema=read.ddl_schema, schema=read.schema)
    prepared = prepare(
        replace(plan, source=replace(plan.source, read=json)), replace(batch, parts=tuple(parts))
    )
    positions = {(row.partition, row.offset) for row in prepared.bad}
    for part, payloads in zip(batch.parts, framed, strict=True) if positions else ():
        for place, offset in enumerate(part.offsets):
            if (part.partition, offset) in positions:
                raw[part.partition, offset] = payloads[place]
    return replace(
        prepared,
        source=plan.source,
        bad=tuple(_original(row, raw, reasons) for row in prepared.bad),
    )


def _frame(
    values: Sequence[bytes | None], headers: Mapping[str, Sequence[bytes | None]], header: str
) -> Sequence[bytes | None]:
    """Return values with the schema ids of their headers prepended."""
    ids = headers.get(header, ())
    if not any(ids):
        return values
    return [value if value is None else (id_ or b"") + value for value, id_ in zip(values, ids, strict=True)]


def _objects(keys: Sequence[bytes | None], columns: MessageColumns) -> Sequence[bytes | None]:
    """Return keys as JSON objects; a string, number or boolean becomes the value of the only key column."""
    if len(columns.keys) != 1:
        return keys
    name = json.dumps(columns.keys[0]).encode()
    return [b"{%s:%s}" % (name, key) if key is not None and _is_single(key) else key for key in keys]


def _is_single(key: bytes) -> bool:
    """Return whether a key is a single JSON value, not an object; with a JSON schema it may be invalid JSON too."""
    if key.lstrip()[:1] in {b"{", b"["}:
        return False
    try:
        json.loads(key)
    except ValueError:
        return False
    return True


def _readable(
    decode: Callable[[Sequence[bytes | None]], tuple[MessageBuffer, dict[int, str]]],
    values: Sequence[bytes | None],
) -> tuple[MessageBuffer, dict[int, str]]:
    """Return values as JSON, and by index the reasons for bad values, which are replaced by `UNREADABLE`."""
    contents, faults = decode(values)
    if faults:
        # Not None, a tombstone, nor empty, a snapshot without records.
        contents = MessageBuffer.pack(
            [UNREADABLE if row in faults else value for row, value in enumerate(contents)]
        )
    return contents, faults


def _original(
    bad: BadRecord, raw: dict[tuple[int, int], bytes | None], reasons: dict[tuple[int, int], str]
) -> BadRecord:
    key = (bad.partition, bad.offset)
    return replace(bad, value=raw[key], reason=reasons.get(key, bad.reason))
