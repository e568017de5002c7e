"""The definition by which a dataset is polled: that in its chain, or a Source resource."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from odf_common.chain.state import DEFAULT_SOURCE
from odf_common.metadata.events import SetPollingSource
from odf_common.metadata.fetching import FetchStep
from odf_ingest.poll.templates import Secrets

Fill: TypeAlias = Callable[[FetchStep], tuple[FetchStep, Secrets]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledSource:
    """A source to poll."""

    definition: SetPollingSource
    name: str = DEFAULT_SOURCE
    """Its name in the states of the chain."""
    is_in_chain: bool = True
    """Whether the chain defines it, so that a new definition ends the poll."""
    fill: Fill
    """Returns a fetch step with its templates filled in, and the values to mask."""
