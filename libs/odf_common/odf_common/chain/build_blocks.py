"""Builds blocks for given events on top of a chain, and the events that add data to a root dataset.

Each block is checked by the same rules as blocks from elsewhere, so a proposer finds errors before the coordinator
does. Every event with data repeats some fields of the previous one (wire-facts §5.4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, DataSlice, KnownEvent, MetadataBlock, SourceState
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS, Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    """A block, its stored bytes, and their hash."""

    hash: Multihash
    raw: bytes
    block: MetadataBlock


class ClockBehind(Unavailable):
    """The last block of a dataset has a time in the future, so a block with the current time cannot follow it."""

    MESSAGE = "the last block is from {last}, but the clock of this machine says {now}"
    ADVICE = (
        "if the clock is wrong, set it: commits then continue automatically; if the block is, drop it: "
        "`odf log DATASET` shows it, and `odf reset DATASET BLOCK` goes back to a block before it"
    )

    what: str = "the time of the next block"
    last: Timestamp
    now: Timestamp


def latest_time(now: Timestamp, tolerance_ms: int = CLOCK_TOLERANCE_MS) -> Timestamp:
    """Return the latest system time that a block may have at time `now`."""
    return Timestamp(now.ns + tolerance_ms * 1_000_000)


def next_system_time(past: ChainState, now: Timestamp, tolerance_ms: int = CLOCK_TOLERANCE_MS) -> Timestamp:
    """Return the system time of the next block: `now`, or 1 ms after the last block if that is later.

    The rules of the chain also allow equal times. Raises `ClockBehind` if the result is later than `now` by more
    than the tolerance.
    """
    # The blocks of a commit have one time, by which a repeated commit is recognized and a commit is rolled back as a
    # whole: two commits must not share it. kamu writes milliseconds.
    time = max(now, Timestamp.from_ms(past.system_time.ms + 1))
    if time > latest_time(now, tolerance_ms):
        raise ClockBehind(last=past.system_time, now=now)
    return time


def build_blocks(
    past: ChainState | None, events: Sequence[KnownEvent], *, system_time: Timestamp, version: int
) -> tuple[tuple[EncodedBlock, ...], ChainState]:
    """Return one block per event, in order, and the state of the chain after the last of them.

    A new chain uses manifest version `version`; an existing chain keeps the version that it began with. Raises
    `ChainRuleViolated` if an event breaks a rule, and `InvalidInput` if there are no events.
    """
    if not events:
        raise InvalidInput(text="no events to put into blocks")
    state = past
    blocks = []
    for event in events:
        block = MetadataBlock(
            system_time=system_time,
            prev_block_hash=None if state is None else state.head,
            sequence_number=0 if state is None else state.sequence_number + 1,
            event=event,
        )
        raw = encode_block(block, version if state is None else state.block_version)
        encoded = EncodedBlock(hash=block_hash(raw), raw=raw, block=block)
        state = admit(state, block, block_hash=encoded.hash, version=version)
        blocks.append(encoded)
    assert state is not None
    return tuple(blocks), state


def add_data_event(
    state: ChainState,
    *,
    new_data: DataSlice | None,
    watermark: Timestamp | None,
    source_state: SourceState | None,
) -> AddData:
    """Return the event that adds a slice, a watermark and a source state on top of `state`.

    The watermark is the later of the current and the new one. Without a `source_state`, the event repeats that of the
    previous event, because other nodes only look at the last event.
    """
    return AddData(
        prev_checkpoint=checkpoint_hash(state),
        prev_offset=state.last_offset,
        new_data=new_data,
        new_watermark=later(state.watermark, watermark),
        new_source_state=source_state or _carried_state(state),
    )


def later(current: Timestamp | None, new: Timestamp | None) -> Timestamp | None:
    """Return the later of two watermarks, either of which may be None."""
    if current is None or new is None:
        return new if current is None else current
    return max(current, new)


def checkpoint_hash(state: ChainState) -> Multihash | None:
    """Return the value of `prevCheckpoint` for the next event with data."""
    return None if state.checkpoint is None else state.checkpoint.physical_hash


def _carried_state(state: ChainState) -> SourceState | None:
    # The state of a disabled source is not carried: the rules would take the event for one of that source.
    last = state.last_source_state
    return None if last is None or last.source_name in state.definitions.disabled_sources else last
