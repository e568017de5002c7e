"""The rules of the metadata chain, and `admit`, which checks a block against them (wire-facts §5.5).

A rule is a function whose docstring states the rule and its section. It returns a description of the violation, or
None. Coordinator, verifier and sync check all blocks here. Two things are checked elsewhere: that a block's hash
matches its bytes, where bytes are read (`chain/walk.py`), and that the head has not moved, in the store.
"""

from collections.abc import Callable
from typing import Final

from odf_common.chain.rules import data_events, structure
from odf_common.chain.state import ChainState, after, begin
from odf_common.errors import ChainRuleViolated
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, ExecuteTransform, MetadataBlock, MetadataEvent, Seed

FirstRule = Callable[[MetadataBlock], str | None]
Rule = Callable[[ChainState, MetadataBlock], str | None]

FIRST_RULES: Final[tuple[FirstRule, ...]] = (
    structure.chain_begins_with_a_seed,
    structure.chain_begins_at_zero,
)
_ORDER: Final[tuple[Rule, ...]] = (
    structure.seed_comes_first,
    structure.sequence_is_dense,
    structure.previous_block_is_the_head,
    structure.system_time_never_decreases,
    structure.event_is_readable_where_needed,
    structure.event_fits_dataset_kind,
)
_DATA: Final[tuple[Rule, ...]] = (
    data_events.event_with_data_is_not_empty,
    data_events.offset_interval_is_closed,
    data_events.offsets_are_contiguous,
    data_events.previous_offset_is_carried,
    data_events.data_has_a_schema,
    data_events.checkpoint_is_linked,
    data_events.watermark_is_kept,
    data_events.watermark_never_decreases,
)
_ADD_DATA: Final[tuple[Rule, ...]] = (
    data_events.add_data_changes_something,
    structure.disabled_source_takes_no_data,
)
_EXECUTE_TRANSFORM: Final[tuple[Rule, ...]] = (
    data_events.transform_is_defined_first,
    data_events.inputs_are_those_of_the_transform,
    data_events.input_blocks_are_contiguous,
    data_events.input_offsets_are_contiguous,
    data_events.transform_changes_something,
)
_DEFINITION: Final[tuple[Rule, ...]] = (
    data_events.transform_inputs_are_resolved,
    data_events.transform_reads_other_datasets,
    data_events.queries_are_normalized,
    structure.polling_source_stands_alone,
    structure.push_source_meets_no_polling,
    structure.push_source_changes_something,
    structure.ethereum_source_is_placed,
    structure.read_step_has_one_schema,
    structure.disabled_source_exists,
    data_events.schema_is_given,
    data_events.schema_changes_something,
    data_events.schema_stays_compatible,
)
RULES: Final[tuple[Rule, ...]] = (*_ORDER, *_DATA, *_ADD_DATA, *_EXECUTE_TRANSFORM, *_DEFINITION)

# Only the rules that apply to an event, so that blocks with data, which are nearly all blocks, are cheap.
_RULES_OF: Final[dict[type[MetadataEvent], tuple[Rule, ...]]] = {
    AddData: (*_ORDER, *_DATA, *_ADD_DATA),
    ExecuteTransform: (*_ORDER, *_DATA, *_EXECUTE_TRANSFORM),
}
_RULES_OF_OTHERS: Final = (*_ORDER, *_DEFINITION)


def admit(
    past: ChainState | None, block: MetadataBlock, *, block_hash: Multihash, version: int
) -> ChainState:
    """Return the state with `block` on top of `past`, which is None for the empty chain.

    `version` is the manifest version of the block; every version that can be read is accepted. Raises
    `ChainRuleViolated` with the name of the first rule that the block breaks.
    """
    if past is None:
        for first_rule in FIRST_RULES:
            fault = first_rule(block)
            if fault is not None:
                raise _violation(first_rule.__name__, fault, block)
        assert isinstance(block.event, Seed)
        return begin(block, block.event, head=block_hash, version=version)
    # Only the first broken rule is named, so the order of the rules decides which message a user sees.
    for rule in _RULES_OF.get(type(block.event), _RULES_OF_OTHERS):
        fault = rule(past, block)
        if fault is not None:
            raise _violation(rule.__name__, fault, block)
    return after(past, block, head=block_hash)


def _violation(rule: str, fault: str, block: MetadataBlock) -> ChainRuleViolated:
    return ChainRuleViolated(rule=rule, text=fault, sequence_number=block.sequence_number)
