"""Rules of events with data, AddData and ExecuteTransform (wire-facts §5.4, §5.5, 5–12 and 15; RFC-014).

The module also contains the rules of data schemas (wire-facts §5.5, 22), and those of SetTransform and ExecuteTransform
(wire-facts §5.5, 13–18; RFC-014).
"""

from collections.abc import Iterator

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    DataEvent,
    ExecuteTransform,
    MetadataBlock,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    TransformSql,
)


def watermark_is_kept(past: ChainState, block: MetadataBlock) -> str | None:
    """Once a dataset has a watermark, every event with data contains one (spec: Watermark; §5.5, 5)."""
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
    """An event with data contains data, a checkpoint, a watermark or a source state (spec: AddData; §5.5, 6)."""
    event = block.event
    if not isinstance(event, DataEvent):
        return None
    if event.new_data is not None or event.new_checkpoint is not None or event.new_watermark is not None:
        return None
    if isinstance(event, AddData) and event.new_source_state is not None:
        return None
    return "the event has neither data nor checkpoint, watermark or source state"


def offset_interval_is_closed(past: ChainState, block: MetadataBlock) -> str | None:
    """A slice has at least one record, so its interval does not end before it starts (spec: DataSlice; §5.5, 7)."""
    event = block.event
    if not isinstance(event, DataEvent) or event.new_data is None:
        return None
    interval = event.new_data.offset_interval
    if interval.end < interval.start:
        return f"offsets end at {interval.end}, before they start at {interval.start}"
    return None


def offsets_are_contiguous(past: ChainState, block: MetadataBlock) -> str | None:
    """A slice starts at the offset after `prevOffset`; the first slice starts at 0 (spec: DataSlice; §5.5, 7)."""
    event = block.event
    if not isinstance(event, DataEvent) or event.new_data is None:
        return None
    # By the event's own `prevOffset`: whether that is the chain's is another rule, which names that fault.
    expected = 0 if event.prev_offset is None else event.prev_offset + 1
    if event.new_data.offset_interval.start != expected:
        return f"offsets should start at {expected}, but start at {event.new_data.offset_interval.start}"
    return None


def previous_offset_is_carried(past: ChainState, block: MetadataBlock) -> str | None:
    """`prevOffset` is the offset of the last record, and is absent before the first record (RFC-014; §5.5, 8)."""
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
    """`prevCheckpoint` is the checkpoint of the previous event with data, if that has one (§5.5, 10 and 15)."""
    event = block.event
    if not isinstance(event, DataEvent):
        return None
    expected = None if past.checkpoint is None else past.checkpoint.physical_hash
    if event.prev_checkpoint != expected:
        return f"prevCheckpoint should be {_or_none(expected)}, is {_or_none(event.prev_checkpoint)}"
    return None


def add_data_changes_something(past: ChainState, block: MetadataBlock) -> str | None:
    """AddData adds data, or changes the checkpoint, the watermark or the source state (§5.5, 11)."""
    event = block.event
    return (
        "the event changes nothing" if isinstance(event, AddData) and is_without_change(past, event) else None
    )


def is_without_change(past: ChainState, event: AddData) -> bool:
    """Return whether the event adds nothing to the state before it."""
    if event.new_data is not None:
        return False
    if event.new_checkpoint is not None and event.new_checkpoint.physical_hash != event.prev_checkpoint:
        return False
    return event.new_watermark == past.watermark and event.new_source_state == past.last_source_state


def _or_none(value: object) -> str:
    return "absent" if value is None else str(value)


def schema_is_given(past: ChainState, block: MetadataBlock) -> str | None:
    """SetDataSchema contains a schema, as Arrow bytes or in ODF's own format (spec: SetDataSchema)."""
    event = block.event
    if isinstance(event, SetDataSchema) and event.raw_arrow_schema is None and event.schema is None:
        return "the event has no schema"
    return None


def schema_changes_something(past: ChainState, block: MetadataBlock) -> str | None:
    """SetDataSchema differs from the current schema (§5.5, 22)."""
    if isinstance(block.event, SetDataSchema) and block.event == past.definitions.schema:
        return "the schema is set already"
    return None


def schema_stays_compatible(past: ChainState, block: MetadataBlock) -> str | None:
    """A new schema may add optional columns and reorder columns; other changes do not fit existing data (§5.5, 22)."""
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


def transform_is_defined_first(past: ChainState, block: MetadataBlock) -> str | None:
    """ExecuteTransform comes after the SetTransform it executes (spec: ExecuteTransform; §5.5, 13)."""
    if isinstance(block.event, ExecuteTransform) and past.definitions.transform is None:
        return "the chain has no SetTransform before it"
    return None


def inputs_are_those_of_the_transform(past: ChainState, block: MetadataBlock) -> str | None:
    """ExecuteTransform lists every input of the current SetTransform, in the same order (§5.5, 13)."""
    event, transform = block.event, past.definitions.transform
    if not isinstance(event, ExecuteTransform) or transform is None:
        return None
    expected = [DatasetId.parse(input_.dataset_ref) for input_ in transform.inputs]
    actual = [input_.dataset_id for input_ in event.query_inputs]
    return None if actual == expected else f"inputs should be {expected}, but are {actual}"


def input_blocks_are_contiguous(past: ChainState, block: MetadataBlock) -> str | None:
    """Each input continues at its last processed block, and a new block differs from that (RFC-014; §5.5, 14)."""
    if not isinstance(block.event, ExecuteTransform):
        return None
    for step in block.event.query_inputs:
        expected = past.progress_of(step.dataset_id).last_block
        if step.prev_block_hash != expected:
            return f"prevBlockHash of {step.dataset_id} should be {expected}, but is {step.prev_block_hash}"
        if step.new_block_hash is not None and step.new_block_hash == step.prev_block_hash:
            return f"newBlockHash of {step.dataset_id} equals its prevBlockHash"
    return None


def input_offsets_are_contiguous(past: ChainState, block: MetadataBlock) -> str | None:
    """Each input continues after its last processed record; new records require new blocks (RFC-014; §5.5, 14)."""
    if not isinstance(block.event, ExecuteTransform):
        return None
    for step in block.event.query_inputs:
        expected = past.progress_of(step.dataset_id).last_offset
        if step.prev_offset != expected:
            return f"prevOffset of {step.dataset_id} should be {expected}, but is {step.prev_offset}"
        if step.new_offset is None:
            continue
        if step.new_block_hash is None:
            return f"{step.dataset_id} has newOffset without newBlockHash"
        if step.prev_offset is not None and step.new_offset <= step.prev_offset:
            return f"newOffset of {step.dataset_id}, {step.new_offset}, is not after {step.prev_offset}"
    return None


def transform_changes_something(past: ChainState, block: MetadataBlock) -> str | None:
    """ExecuteTransform adds data or input blocks, or changes the checkpoint or the watermark (§5.5, 16)."""
    event = block.event
    if not isinstance(event, ExecuteTransform) or event.new_data is not None:
        return None
    if event.new_checkpoint is not None and event.new_checkpoint.physical_hash != event.prev_checkpoint:
        return None
    if event.new_watermark != past.watermark or any(input_.new_block_hash for input_ in event.query_inputs):
        return None
    return "the event changes nothing"


def transform_inputs_are_resolved(past: ChainState, block: MetadataBlock) -> str | None:
    """SetTransform has at least one input and none twice; each one has a dataset id and an alias (§5.5, 17)."""
    if not isinstance(block.event, SetTransform):
        return None
    if not block.event.inputs:
        return "the transform has no input"
    seen: set[DatasetId] = set()
    for input_ in block.event.inputs:
        try:
            dataset = DatasetId.parse(input_.dataset_ref)
        except InvalidInput:
            return f"input {input_.dataset_ref!r} is not a dataset id"
        if dataset in seen:
            return f"input {dataset} is listed twice"
        if input_.alias is None:
            return f"input {dataset} has no alias"
        seen.add(dataset)
    return None


def transform_reads_other_datasets(past: ChainState, block: MetadataBlock) -> str | None:
    """SetTransform does not read its own dataset (§5.5 leaves this open)."""
    event = block.event
    if isinstance(event, SetTransform) and any(
        DatasetId.parse(input_.dataset_ref) == past.dataset_id for input_ in event.inputs
    ):
        return "the dataset is an input of its own transform"
    return None


def queries_are_normalized(past: ChainState, block: MetadataBlock) -> str | None:
    """SQL is a list of queries; all but the last have an alias, and the last one is the output (§5.5, 18)."""
    return next((fault for transform in _transforms(block) for fault in _query_faults(transform)), None)


def _transforms(block: MetadataBlock) -> Iterator[TransformSql]:
    match block.event:
        case SetTransform(transform=transform):
            yield transform
        case SetPollingSource(preprocess=transform) | AddPushSource(preprocess=transform):
            if transform is not None:
                yield transform
        case _:
            pass


def _query_faults(transform: TransformSql) -> Iterator[str]:
    if transform.query is not None:
        yield "`query` is set; it should be the last of `queries`"
    if not transform.queries:
        yield "`queries` is empty"
        return
    if transform.queries[-1].alias is not None:
        yield f"the last query has an alias, {transform.queries[-1].alias!r}; it is the output"
    if any(query.alias is None for query in transform.queries[:-1]):
        yield "a query other than the last has no alias"
