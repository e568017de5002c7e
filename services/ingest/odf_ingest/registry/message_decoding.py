"""Applies a source's decoder to a batch of messages, before the pipeline and after it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepNdJson
from odf_ingest.prepare.batch import BadRecord, MessageBatch
from odf_ingest.prepare.plan import Plan
from odf_ingest.prepare.preparer import Prepared
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.read.types.columns import DecodedJson
from odf_ingest.registry.decoder import Decoder

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
    decoder: Decoder, plan: Plan, batch: MessageBatch, prepare: Callable[[Plan, MessageBatch], Prepared]
) -> Prepared:
    """Return what `prepare` makes of the decoded messages; bad ones have their original bytes.

    Raises `RegistryUnavailable`, and `InvalidInput` if the source does not read NdJson.
    """
    read = json_step(plan.source.read)
    reasons: dict[tuple[int, int], str] = {}
    raw: dict[tuple[int, int], bytes | None] = {}
    parts = []
    for part in batch.parts:
        values, faults = decoder.decode(part.values)
        if faults:
            # Not None, a tombstone, nor empty, a snapshot without records.
            values = MessageBuffer.of(
                [UNREADABLE if place in faults else value for place, value in enumerate(values)]
            )
        reasons |= {(part.partition, part.offsets[place]): why for place, why in faults.items()}
        parts.append(replace(part, values=values))
    json = DecodedJson(ddl_schema=read.ddl_schema, schema=read.schema)
    prepared = prepare(
        replace(plan, source=replace(plan.source, read=json)), replace(batch, parts=tuple(parts))
    )
    wanted = {(one.partition, one.offset) for one in prepared.bad}
    for part in batch.parts if wanted else ():
        for place, offset in enumerate(part.offsets):
            if (part.partition, offset) in wanted:
                raw[part.partition, offset] = part.values[place]
    return replace(
        prepared,
        source=plan.source,
        bad=tuple(_original(one, raw, reasons) for one in prepared.bad),
    )


def _original(
    bad: BadRecord, raw: dict[tuple[int, int], bytes | None], reasons: dict[tuple[int, int], str]
) -> BadRecord:
    place = (bad.partition, bad.offset)
    return replace(bad, value=raw[place], reason=reasons.get(place, bad.reason))
