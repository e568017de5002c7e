"""Rules for every block, whatever its event: its position, time and kind (wire-facts §5.5, 1–4).

A rule returns a description of the violation, or None; `chain/rules/__init__.py` raises it as an error.

The module also contains the rules for defining, replacing and disabling sources (wire-facts §5.5, 19–21). The reference
implementation never disables a source; in this implementation a disabled source adds no data until it is replaced.
"""

from typing import Final

from odf_common.chain.state import ChainState, Definitions, event_tag
from odf_common.metadata.events import (
    DERIVATIVE_ONLY,
    ROOT_ONLY,
    AddData,
    AddPushSource,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    KnownEvent,
    MetadataBlock,
    Seed,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetPollingSource,
    UnknownEvent,
)
from odf_common.metadata.fetching import FetchStepEthereumLogs

_KNOWN: Final = KnownEvent.__args__
# No later check depends on the content of these, so they may be unreadable.
_SAFE_UNREAD: Final = (SetPollingSource, AddPushSource, SetAttachments, SetInfo, SetLicense)


def chain_begins_with_a_seed(block: MetadataBlock) -> str | None:
    """The first block is a Seed and has no previous block (spec: Seed; §5.5, 1)."""
    if not isinstance(block.event, Seed):
        return f"the first block is {_name(block)}, not a Seed"
    if block.prev_block_hash is not None:
        return f"the first block names a previous block, {block.prev_block_hash}"
    return None


def chain_begins_at_zero(block: MetadataBlock) -> str | None:
    """The first block has sequence number 0 (spec: MetadataBlock; §5.5, 2)."""
    if block.sequence_number != 0:
        return f"the first block has sequence number {block.sequence_number}, not 0"
    return None


def seed_comes_first(past: ChainState, block: MetadataBlock) -> str | None:
    """Only the first block of a chain is a Seed (spec: Seed; §5.5, 1)."""
    return "only the first block of a chain is a Seed" if isinstance(block.event, Seed) else None


def previous_block_is_the_head(past: ChainState, block: MetadataBlock) -> str | None:
    """A block contains the hash of the block before it (spec: MetadataBlock; §5.5, 3)."""
    if block.prev_block_hash != past.head:
        return f"previous block should be {past.head}, but is {block.prev_block_hash}"
    return None


def sequence_is_dense(past: ChainState, block: MetadataBlock) -> str | None:
    """The sequence number of a block is one more than that of the block before (spec: MetadataBlock; §5.5, 2)."""
    if block.sequence_number != past.sequence_number + 1:
        return f"sequence number should be {past.sequence_number + 1}, but is {block.sequence_number}"
    return None


def system_time_never_decreases(past: ChainState, block: MetadataBlock) -> str | None:
    """The system time of a block is not before that of the block before (spec: MetadataBlock; §5.5, 4)."""
    if block.system_time.ns < past.system_time.ns:
        return f"system time {block.system_time} is before that of the previous block, {past.system_time}"
    return None


def event_is_readable_where_needed(past: ChainState, block: MetadataBlock) -> str | None:
    """An event of an unknown kind is kept unchanged, unless the checks of later blocks need its content (§1.6)."""
    event = block.event
    if not isinstance(event, UnknownEvent):
        return None
    # An event of a later version has a tag that is not known here: nothing that is checked depends on it.
    is_known = 1 <= event.discriminator <= len(_KNOWN)
    if event.discriminator == 0 or (is_known and _KNOWN[event.discriminator - 1] not in _SAFE_UNREAD):
        return f"{_name(block)} cannot be read: {event.reason}"
    return None


def event_fits_dataset_kind(past: ChainState, block: MetadataBlock) -> str | None:
    """Sources and AddData belong to root datasets, transforms to derivative ones (spec: Dataset)."""
    tag = event_tag(block.event)
    kind = _KNOWN[tag - 1] if 1 <= tag <= len(_KNOWN) else None
    foreign = DERIVATIVE_ONLY if past.kind is DatasetKind.Root else ROOT_ONLY
    if kind in foreign:
        return f"{_name(block)} is not allowed in a {past.kind.name.lower()} dataset"
    return None


def _name(block: MetadataBlock) -> str:
    tag = event_tag(block.event)
    return _KNOWN[tag - 1].__name__ if 1 <= tag <= len(_KNOWN) else f"event {tag}"


def polling_source_stands_alone(past: ChainState, block: MetadataBlock) -> str | None:
    """A dataset with push sources has no polling source (spec: SetPollingSource; §5.5, 19)."""
    if isinstance(block.event, SetPollingSource) and past.definitions.push_sources:
        names = ", ".join(past.definitions.push_sources)
        return f"the dataset has push sources ({names}); disable them first"
    return None


def push_source_meets_no_polling(past: ChainState, block: MetadataBlock) -> str | None:
    """A dataset with a polling source has no push sources (spec: AddPushSource; §5.5, 20)."""
    if isinstance(block.event, AddPushSource) and past.definitions.polling_source is not None:
        return "the dataset has a polling source; disable it first"
    return None


def push_source_changes_something(past: ChainState, block: MetadataBlock) -> str | None:
    """A push source is not redefined without a change (§5.5, 20)."""
    event = block.event
    if isinstance(event, AddPushSource) and past.definitions.push_sources.get(event.source_name) == event:
        return f"push source {event.source_name!r} is already defined like this"
    return None


def ethereum_source_is_placed(past: ChainState, block: MetadataBlock) -> str | None:
    """A source of Ethereum logs names a chain or a node (§5.5, 19)."""
    match block.event:
        case SetPollingSource(fetch=FetchStepEthereumLogs(chain_id=None, node_url=None)):
            return "the source has neither chainId nor nodeUrl"
        case _:
            return None


def read_step_has_one_schema(past: ChainState, block: MetadataBlock) -> str | None:
    """A read step has its schema as DDL or in ODF's own format, but not both (§5.5, 19)."""
    match block.event:
        case SetPollingSource(read=read) | AddPushSource(read=read):
            both = read.ddl_schema is not None and read.schema is not None
            return "the read step has two schemas" if both else None
        case _:
            return None


def disabled_source_exists(past: ChainState, block: MetadataBlock) -> str | None:
    """Only an enabled source can be disabled (spec: DisablePushSource, DisablePollingSource)."""
    definitions = past.definitions
    if definitions.has_opaque_source:
        return None
    match block.event:
        case DisablePushSource(source_name=name) if name not in definitions.push_sources:
            return f"push source {name!r} does not exist, so it cannot be disabled"
        case DisablePollingSource() if definitions.polling_source is None:
            return "the dataset has no polling source to disable"
        case _:
            return None


def disabled_source_takes_no_data(past: ChainState, block: MetadataBlock) -> str | None:
    """A disabled source adds no data (spec: DisablePushSource, DisablePollingSource)."""
    definitions = past.definitions
    event = block.event
    if not definitions.disabled_sources or not isinstance(event, AddData):
        return None
    if (
        event.new_source_state is not None
        and event.new_source_state.source_name in definitions.disabled_sources
    ):
        return f"source {event.new_source_state.source_name!r} is disabled"
    if event.new_data is not None and not _takes_data(definitions):
        return "all sources are disabled"
    return None


def _takes_data(definitions: Definitions) -> bool:
    return (
        bool(definitions.push_sources)
        or definitions.polling_source is not None
        or definitions.has_opaque_source
    )
