"""Builds the events that add data to a root dataset, and the fields that every event carries over (wire-facts §5.4)."""

from odf_common.chain.state import ChainState
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddData,
    DataSlice,
    SourceState,
)
from odf_common.metadata.scalars import Timestamp


def add_data_event(
    state: ChainState,
    *,
    new_data: DataSlice | None,
    watermark: Timestamp | None,
    source_state: SourceState | None,
) -> AddData:
    """Return the event that adds these on top of `state`.

    The watermark is the later of the current and the new one. Without a `source_state` the previous event's is carried
    over, since other nodes only look at the last event.
    """
    return AddData(
        prev_checkpoint=checkpoint_hash(state),
        prev_offset=state.last_offset,
        new_data=new_data,
        new_watermark=later(state.watermark, watermark),
        new_source_state=source_state or _carried_state(state),
    )


def later(current: Timestamp | None, new: Timestamp | None) -> Timestamp | None:
    """Return the later of two watermarks, either of which may be absent."""
    if current is None or new is None:
        return new if current is None else current
    return max(current, new)


def checkpoint_hash(state: ChainState) -> Multihash | None:
    """Return the `prevCheckpoint` of the next event with data."""
    return None if state.checkpoint is None else state.checkpoint.physical_hash


def _carried_state(state: ChainState) -> SourceState | None:
    # The state of a disabled source is not carried: the rules would take the event for one of that source.
    last = state.last_source_state
    return None if last is None or last.source_name in state.definitions.disabled_sources else last
