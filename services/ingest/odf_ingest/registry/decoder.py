"""Decodes messages with the schemas that they name, which are fetched once and cached."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from uuid import UUID

from odf_common.errors import InvalidInput
from odf_ingest.prepare.debezium_values import with_logical_types
from odf_ingest.read.message_buffer import MessageBuffer
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
    """A schema's decoder, or the cached error of fetching it, and until when that is cached (seconds, monotonic)."""

    decode: Decode | None = None
    why: str = ""
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaUse:
    """What a schema is used for, which decides on what it may be."""

    is_key: bool = False
    """Then it may be that of a single value."""
    is_debezium: bool = False
    """Then times may be named by Debezium."""


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
        """Return the messages as JSON, and by index why others cannot be decoded; those are tombstones then.

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
        return MessageBuffer.of(decoded), faults

    def _json(self, value: bytes, use: SchemaUse) -> bytes:
        name, payload = _named(value)
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
            cached = self._fetched(name, use)
            with self._mutex:
                self._cached[name, use] = cached
                self._cached.move_to_end((name, use))
                while len(self._cached) > MAX_SCHEMAS:
                    self._cached.popitem(last=False)
        if cached.decode is None:
            raise InvalidInput(text=cached.why)
        return cached.decode

    def _fetched(self, name: int | UUID, use: SchemaUse) -> _CachedDecoder:
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
        """Return the decoder for a source's settings; None if they name no registry."""
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


def _named(value: bytes) -> tuple[int | UUID, bytes]:
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
