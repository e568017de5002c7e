"""Rules of events with data, AddData and ExecuteTransform alike (wire-facts §5.4, §5.5, 5–12 and 15; RFC-014).

Also those of the schema of the data: which may follow which (wire-facts §5.5, 22).
"""

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddData, DataEvent, MetadataBlock, SetDataSchema


def watermark_is_kept(past: ChainState, block: MetadataBlock) -> str | None:
    """Once a dataset has a watermark, every event with data states it (spec: Watermark; §5.5, 5)."""
    event = block.event
    if not isinstance(event, DataEvent) or past.watermark is None:
        return None
    return f"watermark {past.watermark} is lost" if event.new_watermark is None else None


def watermark_never_decreases(past: ChainState, block: MetadataBlock) -> str | None:
    """A block keeps or raises the watermark, never lowers it (spec: Watermark; §5.5, 5)."""
    event = block.event
    if not isinstance(event, DataEvent):
        return None
    if past.watermark is None or event.new_watermark is None:
        return None
    if event.new_watermark.ns < past.watermark.ns:
        return f"watermark decreases from {past.watermark} to {event.new_watermark}"
    return None


def event_with_data_is_not_empty(past: ChainState, block: MetadataBlock) -> str | None:
    """An event with data has data, a checkpoint, a watermark or a source state (spec: AddData; §5.5, 6)."""
    event = block.event
    if not isinstance(event, DataEvent):
        return None
    if event.new_data is not None or event.new_checkpoint is not None or event.new_watermark is not None:
        return None
    if isinstance(event, AddData) and event.new_source_state is not None:
        return None
    return "the event has neither data nor checkpoint, watermark or source state"


def offset_interval_is_closed(past: ChainState, block: MetadataBlock) -> str | None:
    """A slice has at least one record, so its interval ends where it starts or later (spec: DataSlice; §5.5, 7)."""
    event = block.event
    if not isinstance(event, DataEvent) or event.new_data is None:
        return None
    interval = event.new_data.offset_interval
    if interval.end < interval.start:
        return f"offsets end at {interval.end}, before they start at {interval.start}"
    return None


def offsets_are_contiguous(past: ChainState, block: MetadataBlock) -> str | None:
    """A slice starts at the offset after `prevOffset`, the first at 0 (spec: DataSlice; §5.5, 7)."""
    event = block.event
    if not isinstance(event, DataEvent) or event.new_data is None:
        return None
    # By the event's own `prevOffset`: whether that is the chain's is another rule, which names that fault.
    expected = 0 if event.prev_offset is None else event.prev_offset + 1
    if event.new_data.offset_interval.start != expected:
        return f"offsets should start at {expected}, but start at {event.new_data.offset_interval.start}"
    return None


def previous_offset_is_carried(past: ChainState, block: MetadataBlock) -> str | None:
    """`prevOffset` is the offset of the last record so far, absent while there is none (RFC-014; §5.5, 8)."""
    event = block.event
    if isinstance(event, DataEvent) and event.prev_offset != past.last_offset:
        return f"prevOffset should be {_or_none(past.last_offset)}, is {_or_none(event.prev_offset)}"
    return None


def data_has_a_schema(past: ChainState, block: MetadataBlock) -> str | None:
    """Data comes after the SetDataSchema that describes it (spec: SetDataSchema; §5.5, 9 and 12)."""
    event = block.event
    if not isinstance(event, DataEvent) or event.new_data is None:
        return None
    return "data was added before any SetDataSchema" if past.definitions.schema is None else None


def checkpoint_is_linked(past: ChainState, block: MetadataBlock) -> str | None:
    """`prevCheckpoint` is the checkpoint of the event with data before, if that had one (§5.5, 10 and 15)."""
    event = block.event
    if not isinstance(event, DataEvent):
        return None
    expected = None if past.checkpoint is None else past.checkpoint.physical_hash
    if event.prev_checkpoint != expected:
        return f"prevCheckpoint should be {_or_none(expected)}, is {_or_none(event.prev_checkpoint)}"
    return None


def add_data_changes_something(past: ChainState, block: MetadataBlock) -> str | None:
    """AddData adds data, or another checkpoint, watermark or source state than the event before (§5.5, 11)."""
    event = block.event
    return (
        "the event changes nothing" if isinstance(event, AddData) and is_without_change(past, event) else None
    )


def is_without_change(past: ChainState, event: AddData) -> bool:
    """Return whether the event has nothing that the one before does not have."""
    if event.new_data is not None:
        return False
    if event.new_checkpoint is not None and event.new_checkpoint.physical_hash != event.prev_checkpoint:
        return False
    return event.new_watermark == past.watermark and event.new_source_state == past.last_source_state


def _or_none(value: object) -> str:
    return "absent" if value is None else str(value)


def schema_is_given(past: ChainState, block: MetadataBlock) -> str | None:
    """SetDataSchema holds a schema, as Arrow bytes or in ODF's own form (spec: SetDataSchema)."""
    event = block.event
    if isinstance(event, SetDataSchema) and event.raw_arrow_schema is None and event.schema is None:
        return "the event has no schema"
    return None


def schema_changes_something(past: ChainState, block: MetadataBlock) -> str | None:
    """SetDataSchema is not repeated unchanged (§5.5, 22)."""
    if isinstance(block.event, SetDataSchema) and block.event == past.definitions.schema:
        return "the schema is set already"
    return None


def schema_stays_compatible(past: ChainState, block: MetadataBlock) -> str | None:
    """A new schema may add optional columns and reorder; all else would change old data (§5.5, 22)."""
    event, current = block.event, past.definitions.schema
    if not isinstance(event, SetDataSchema) or current is None:
        return None
    # Imported here: Arrow takes long to load, and few chains change their schema.
    from odf_common.data.schema_evolution import check_evolution, schema_of_event, with_optionality_of  # noqa: PLC0415

    try:
        old, new = schema_of_event(current), schema_of_event(event)
        if event.schema is not None and current.schema is None:
            # Arrow schemas of old chains are unreliable about optionality, so moving to ODF's form may restate it.
            old = with_optionality_of(old, new)
        check_evolution(old, new)
    except InvalidInput as error:
        return str(error)
    return None
