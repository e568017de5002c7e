"""Applies a source's decoder to a batch of messages, before the pipeline and after it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepNdJson
from odf_ingest.message_columns import KEY_SCHEMA, VALUE_SCHEMA, Envelope, KeyFormat, MessageColumns
from odf_ingest.prepare.batch import BadRecord, MessageBatch
from odf_ingest.prepare.plan import Plan
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.read.types.kinds import DecodedJson
from odf_ingest.registry.decoder import Decoder, SchemaUse

REGISTRY_SETTING: Final = "schemaRegistry"
UNREADABLE: Final = b"\xff"  # no JSON, in place of a message that cannot be decoded


def json_step(read: ReadStep) -> ReadStepNdJson:
    """Return the read step of a source whose messages name schemas; raises `InvalidInput` unless it is NdJson."""
    if isinstance(read, ReadStepNdJson):
        return read
    kind = type(read).__name__.removeprefix("ReadStep")
    text = f"messages of a schema registry are read by a source with `kind: NdJson`, this one has {kind}"
    raise InvalidInput(where=REGISTRY_SETTING, text=text)


def decoded(
    decoder: Decoder,
    plan: Plan,
    batch: MessageBatch,
    prepare: Callable[[Plan, MessageBatch], PreparedRecords],
) -> PreparedRecords:
    """Return the result of `prepare` for the decoded messages; bad ones have their original bytes.

    The id of a schema that is in a header is put in front of the bytes, also of bad ones: so they can be read again.

    Raises `RegistryUnavailable`, and `InvalidInput` if the source does not read NdJson.
    """
    read = json_step(plan.source.read)
    reasons: dict[tuple[int, int], str] = {}
    raw: dict[tuple[int, int], bytes | None] = {}
    parts = []
    framed = [_framed(part.values, part.headers, VALUE_SCHEMA) for part in batch.parts]
    use = SchemaUse(is_debezium=batch.columns.envelope is Envelope.DEBEZIUM)
    for part, payloads in zip(batch.parts, framed, strict=True):
        values, faults = _readable(partial(decoder.decode, use=use), payloads)
        keys = part.keys
        if batch.columns.key_format is KeyFormat.REGISTRY:
            framed_keys = _framed(part.keys, part.headers, KEY_SCHEMA)
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


def _framed(
    values: Sequence[bytes | None], headers: Mapping[str, Sequence[bytes | None]], header: str
) -> Sequence[bytes | None]:
    """Return values with the schema ids of their headers in front of them."""
    ids = headers.get(header, ())
    if not any(ids):
        return values
    return [value if value is None else (id_ or b"") + value for value, id_ in zip(values, ids, strict=True)]


def _objects(keys: Sequence[bytes | None], columns: MessageColumns) -> Sequence[bytes | None]:
    """Return keys as objects: one that is a string, a number or a boolean is the value of the only column."""
    if len(columns.keys) != 1:
        return keys
    name = json.dumps(columns.keys[0]).encode()
    return [b"{%s:%s}" % (name, key) if key is not None and _is_single(key) else key for key in keys]


def _is_single(key: bytes) -> bool:
    """Return whether JSON is a single value; the payload of a message with a JSON schema may be anything."""
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
    """Return values as JSON, with `UNREADABLE` for those that cannot be decoded; and by index why."""
    contents, faults = decode(values)
    if faults:
        # Not None, a tombstone, nor empty, a snapshot without records.
        contents = MessageBuffer.of(
            [UNREADABLE if row in faults else value for row, value in enumerate(contents)]
        )
    return contents, faults


def _original(
    bad: BadRecord, raw: dict[tuple[int, int], bytes | None], reasons: dict[tuple[int, int], str]
) -> BadRecord:
    key = (bad.partition, bad.offset)
    return replace(bad, value=raw[key], reason=reasons.get(key, bad.reason))
