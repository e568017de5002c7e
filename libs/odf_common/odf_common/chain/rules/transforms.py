"""Rules of SetTransform and ExecuteTransform (wire-facts §5.5, 13–18; RFC-014)."""

from collections.abc import Iterator

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    ExecuteTransform,
    MetadataBlock,
    SetPollingSource,
    SetTransform,
    TransformSql,
)


def transform_is_defined_first(past: ChainState, block: MetadataBlock) -> str | None:
    """ExecuteTransform comes after the SetTransform it executes (spec: ExecuteTransform; §5.5, 13)."""
    if isinstance(block.event, ExecuteTransform) and past.definitions.transform is None:
        return "the chain has no SetTransform before it"
    return None


def inputs_are_those_of_the_transform(past: ChainState, block: MetadataBlock) -> str | None:
    """ExecuteTransform lists every input of the current SetTransform, in its order (§5.5, 13)."""
    event, transform = block.event, past.definitions.transform
    if not isinstance(event, ExecuteTransform) or transform is None:
        return None
    expected = [DatasetId.parse(input_.dataset_ref) for input_ in transform.inputs]
    actual = [input_.dataset_id for input_ in event.query_inputs]
    return None if actual == expected else f"inputs should be {expected}, but are {actual}"


def input_blocks_are_contiguous(past: ChainState, block: MetadataBlock) -> str | None:
    """Each input continues at the block where it stopped, and a new block is another one (RFC-014; §5.5, 14)."""
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
    """Each input continues at the record where it stopped; new records need new blocks (RFC-014; §5.5, 14)."""
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
    """ExecuteTransform adds data, input blocks, another checkpoint or another watermark (§5.5, 16)."""
    event = block.event
    if not isinstance(event, ExecuteTransform) or event.new_data is not None:
        return None
    if event.new_checkpoint is not None and event.new_checkpoint.physical_hash != event.prev_checkpoint:
        return None
    if event.new_watermark != past.watermark or any(input_.new_block_hash for input_ in event.query_inputs):
        return None
    return "the event changes nothing"


def transform_inputs_are_resolved(past: ChainState, block: MetadataBlock) -> str | None:
    """SetTransform has inputs, each once, by dataset id and with an alias (§5.5, 17)."""
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
    """SQL is a list of queries, all but the last with an alias; the last is the output (§5.5, 18)."""
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
