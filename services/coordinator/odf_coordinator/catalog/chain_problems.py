"""Problems in chains that no further commit can fix, with the command that resets the dataset to an earlier block.

These are invalid blocks of other nodes that were accepted by earlier releases (`odf_common/chain/arrivals.py` has the
rules), a watermark that a wrong event time has raised into the future, and results of a query that has to be replaced.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.chain.walk import blocks_between, iterate, number_before
from odf_common.dataset.plain_credentials import credentials_in, places_of
from odf_common.errors import OdfError, name_dataset
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, SetPollingSource, SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineNotAvailable, QueryFailed
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, Stall, remedy_of

MAX_FUTURE_MS: Final = 24 * 3600 * 1000  # the default of a source's `maxFuture`
MAX_BLOCKS: Final = 10_000  # a listing reads no more to find the one that raised a watermark
CORRECT_ADVICE: Final = (
    "correct the query, with `odf add --replace FILE` or `odf commit {name} FILE`, or its inputs"
)
CHANGE_ADVICE: Final = "change the query{change}, by `odf add --replace FILE` or `odf commit {name} FILE`"
TOLERATING: Final = " so that it passes such records, with try_divide, try_cast, try_add or nullif"
CONTINUES: Final = ": it continues there; nothing of that record's block is derived before"
AGAIN_ADVICE: Final = (
    "; if that is refused, as of a GROUP BY, first {again}: all records are derived again then"
)


def chain_problem(datasets: Datasets, handle: DatasetHandle, latest: Timestamp) -> Stall | None:
    """Return the problem because of which an owned dataset has to be reset, and the remedy; None without a problem.

    `latest` is the latest system time that a block may have now.
    """
    return _uncommittable(datasets, handle, latest) or _watermark_in_future(datasets, handle, latest)


def _uncommittable(datasets: Datasets, handle: DatasetHandle, latest: Timestamp) -> Stall | None:
    state = handle.state
    is_future = state.system_time > latest
    if not (is_future or state.renamed_after is not None) or not datasets.has_key(handle.id):
        return None
    if is_future:
        text = f"nothing can be committed: its last block is from the future, {state.system_time}"
        block = _last_until(datasets, state, latest)
        clock = "if the clock of this machine is wrong, set it, and commits continue automatically; else "
    else:
        text = "its system columns were renamed after records were written, which no longer fit"
        block, clock = state.renamed_after, ""
    if block is None:
        remedy = f"{clock}delete it with `odf delete {handle.alias}`: all of its blocks are from the future"
    else:
        remedy = (
            f"{clock}{_reset(datasets, handle, str(block))} drops the blocks after the last good one; what is still in "
            f"its topics is read again{_roll_back(datasets, handle)}"
        )
    return Stall(reason=text, remedy=remedy, since=min(state.system_time, latest))


def _last_until(datasets: Datasets, state: ChainState, latest: Timestamp) -> Multihash | None:
    """Return the last block whose system time is not later than `latest`; None if there is none."""
    blocks = iterate(datasets.reader(state.dataset_id), state.head)
    return next((name for name, decoded, _ in blocks if decoded.block.system_time <= latest), None)


def derive_again(datasets: Datasets, handle: DatasetHandle) -> str:
    """Return the reset command after which a derivative accepts any new query; empty if it has no results yet.

    The reset goes back to before the first query: otherwise the remaining query would run again at once.
    """
    if handle.state.schema is None:
        return ""
    blocks = blocks_between(datasets.reader(handle.id), handle.state.head, None)
    first = next(decoded.block for _, decoded, _ in blocks if isinstance(decoded.block.event, SetTransform))
    return _reset(datasets, handle, str(first.sequence_number - 1), " --yes")


def reset_before_query(datasets: Datasets, handle: DatasetHandle) -> str:
    """Return the command that resets a derivative to the block before its query."""
    block = number_before(datasets.reader(handle.id), handle.state.head, SetTransform)
    return _reset(datasets, handle, str(block))


def query_remedy(datasets: Datasets, handle: DatasetHandle, error: OdfError) -> str:
    """Return the remedy for a query that the engine refuses, or that fails on its records."""
    if remedy := remedy_of(error, ""):
        return name_dataset(remedy, handle.alias)
    if isinstance(error, EngineNotAvailable):
        return f"use a node with that engine, or continue with this one: `odf engine upgrade {handle.alias}`"
    advice = CORRECT_ADVICE.format(name=handle.alias)
    if isinstance(error, QueryFailed):
        change = f": {error.instead}" if error.instead else TOLERATING
        is_continued = error.records or not error.instead  # else each result is wrong
        advice = CHANGE_ADVICE.format(change=change, name=handle.alias) + (CONTINUES if is_continued else "")
    again = derive_again(datasets, handle)
    return advice + (AGAIN_ADVICE.format(again=again) if again else "")


class EarlierCredentials:
    """Finds credentials in earlier polling sources of a chain. Each block is read once per process."""

    def __init__(self, datasets: Datasets) -> None:
        """Search the chains of these datasets."""
        self._datasets = datasets
        self._found: dict[DatasetId, tuple[Multihash, tuple[tuple[int, SetPollingSource], ...]]] = {}

    def text_for(self, handle: DatasetHandle) -> str:
        """Return a text that lists the credentials in a chain, with their blocks; empty if there are none.

        Credentials of the current polling source are not listed.
        """
        if handle.state.polling_source is None:
            return ""
        earlier = [one for one in self._sources(handle) if one[1] != handle.state.polling_source]
        return "; ".join(
            f"in block {number}: {places_of(credentials_in(event))}" for number, event in earlier
        )

    def _sources(self, handle: DatasetHandle) -> tuple[tuple[int, SetPollingSource], ...]:
        """Return the polling sources that contain credentials, newest first, each with its block's sequence number."""
        known, before = self._found.get(handle.id, (None, ()))
        found: list[tuple[int, SetPollingSource]] = []
        for name, decoded, _ in islice(
            iterate(self._datasets.reader(handle.id), handle.state.head), MAX_BLOCKS
        ):
            if name == known:
                found.extend(before)
                break
            event = decoded.block.event
            if isinstance(event, SetPollingSource) and credentials_in(event):
                found.append((decoded.block.sequence_number, event))
        self._found[handle.id] = (handle.state.head, tuple(found))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raise:
    """The block that raised the watermark to its current value; `before` is the block before it."""

    number: int
    before: Multihash | None
    is_followed: bool
    """Whether a later block has records."""


def _watermark_in_future(datasets: Datasets, handle: DatasetHandle, latest: Timestamp) -> Stall | None:
    """Return a problem if the watermark of an owned root is in the future, and later blocks have records.

    Those records are late for the windows of derivatives. Without later records such a watermark may be intended:
    forecasts raise it with each block, and a user may raise it at the end of the data.
    """
    state = handle.state
    if state.watermark is None or not is_in_future(state.watermark, latest):
        return None
    if handle.is_derivative or not datasets.has_key(handle.id):
        return None
    found = _raise_of(datasets, state)
    if found is not None and not found.is_followed:
        return None
    remedy = (
        "if such times are meant, as in forecasts: the next records raise it again, once "
        f"`odf source show {handle.alias}` says maxFuture=none; {_lower(datasets, handle, found)}"
    )
    which = "" if found is None else f" since block {found.number}"
    text = f"its watermark is in the future, {state.watermark}{which}: records before that are late"
    return Stall(reason=text, remedy=remedy, since=state.system_time)


def is_in_future(time: Timestamp, latest: Timestamp) -> bool:
    """Return whether an event time is so far in the future that by default it does not raise a watermark."""
    return time.ms > latest.ms + MAX_FUTURE_MS


def lower_watermark(datasets: Datasets, handle: DatasetHandle) -> str:
    """Return the remedy for a root whose watermark is too high: a reset to before the block that raised it."""
    return _lower(datasets, handle, _raise_of(datasets, handle.state))


def _lower(datasets: Datasets, handle: DatasetHandle, found: _Raise | None) -> str:
    block, since, more = "BLOCK", "", f"; `odf log {handle.alias}` shows which BLOCK was the last one before"
    if found is not None:
        block, since, more = str(found.before), f" since block {found.number}", ""
    return (
        f"if that time is wrong: `odf source set {handle.alias} maxFuture=1d`, then "
        f"{_reset(datasets, handle, block)} drops{since} what was committed; records in its topics are read again, "
        f"files must be pushed again{_roll_back(datasets, handle)}{more}"
    )


def _reset(datasets: Datasets, handle: DatasetHandle, block: str, options: str = "") -> str:
    """Return the command that resets a dataset, with `--force` if the dataset has derivatives."""
    force = " --force" if datasets.dependants(handle.id) else ""
    return f"`odf reset {handle.alias} {block}{force}{options}`"


def _roll_back(datasets: Datasets, handle: DatasetHandle) -> str:
    if not datasets.dependants(handle.id):
        return ""
    return f"; `odf pull --reset-derivatives {handle.alias}` rolls derivatives back"


def _raise_of(datasets: Datasets, state: ChainState) -> _Raise | None:
    """Return the block that raised the watermark to its value; None if it is not among the last `MAX_BLOCKS`."""
    found, has_records = None, False
    for _, decoded, _ in islice(iterate(datasets.reader(state.dataset_id), state.head), MAX_BLOCKS):
        block, event = decoded.block, decoded.block.event
        is_before = isinstance(event, AddData) and event.new_watermark != state.watermark
        if is_before or block.sequence_number == 0:
            return found
        if isinstance(event, AddData):
            found = _Raise(
                number=block.sequence_number, before=block.prev_block_hash, is_followed=has_records
            )
            has_records = has_records or event.new_data is not None
    return None
