"""Blocks that the rules of a chain accept or refuse: the states before them, and events with changes."""

from dataclasses import replace

from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.metadata.data_schema import DataTypeOption, DataTypeString
from odf_common.metadata.events import (
    AddData,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    MetadataEvent,
    SetInfo,
)
from odf_testing.builders import (
    a_block,
    a_chain,
    a_checkpoint,
    a_dataset,
    a_derivative,
    a_hash,
    a_polling_source,
    a_schema,
    a_seed,
    a_step,
    a_time,
    some_result,
)

A, B = a_dataset("a"), a_dataset("b")
ROOT = a_chain().state
FULL = a_chain().add_data().state
DERIVATIVE = a_derivative(A, B).state
STEPS = (a_step(DERIVATIVE, A, "a1", 9), a_step(DERIVATIVE, B, "b1", None))
DERIVED = a_derivative(A, B).add(some_result(DERIVATIVE, *STEPS)).state
INFO = SetInfo(description="x")


def watermarked(seconds: int) -> ChainState:
    """Return a state whose watermark was set."""
    return a_chain().add(AddData(new_watermark=a_time(seconds))).state


def checkpointed() -> ChainState:
    """Return a state whose last data has a checkpoint."""
    return a_chain().add(AddData(new_checkpoint=a_checkpoint())).state


def polled() -> ChainState:
    """Return a state with a polling source."""
    return a_chain(a_seed(), a_polling_source(), a_schema()).state


def disabled(*others: KnownEvent) -> ChainState:
    """Return a state whose push source was disabled after other events."""
    return a_chain().add(*others, DisablePushSource(source_name="default")).state


def executing(past: ChainState = DERIVED, **first: object) -> ExecuteTransform:
    """Return a result on top of `past` whose first step has other fields."""
    step = replace(a_step(past, A, "a2", 19), **first)  # type: ignore[arg-type]
    return some_result(past, step, a_step(past, B, "b2", None))


def optional(name: str, kind: type = DataTypeString) -> dict[str, DataTypeOption]:
    """Return an optional column."""
    return {name: DataTypeOption(inner=kind())}


Case = tuple[ChainState | None, MetadataEvent, dict[str, object]]


def case(past: ChainState | None, event: MetadataEvent, **changes: object) -> Case:
    """Return a block as the state before it, its event and its changed fields."""
    return past, event, changes


def admitted(past: ChainState | None, event: MetadataEvent, changes: dict[str, object]) -> ChainState:
    """Return the state after a block, which has changed fields."""
    return admit(past, a_block(past, event, **changes), block_hash=a_hash("block"), version=3)
