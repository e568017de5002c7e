"""Rules of sources: how they are defined, replaced and disabled (wire-facts §5.5, 19–21).

The reference never disables a source; here a disabled one takes no data until it is replaced.
"""

from odf_common.chain.state import ChainState, Definitions
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    DisablePollingSource,
    DisablePushSource,
    MetadataBlock,
    SetPollingSource,
)
from odf_common.metadata.fetching import FetchStepEthereumLogs


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
    """A push source may be redefined, but not unchanged (§5.5, 20)."""
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
    """A read step has its schema as DDL or as an ODF schema, not both (§5.5, 19)."""
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
