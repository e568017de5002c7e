"""Problems of chains of this node that no commit can mend: a block that others brought before it was refused.

What may arrive is a table in `odf_common/chain/arrivals.py`. A chain that is older than a row of it is reset to the
block before.
"""

from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.scalars import Timestamp
from odf_coordinator.catalog.problems import Problem
from odf_coordinator.catalog.registry import DatasetHandle, Datasets


def chain_problem(datasets: Datasets, handle: DatasetHandle, latest: Timestamp) -> Problem | None:
    """Return why nothing can follow the head of a dataset whose key is here, and which block to go back to.

    `latest` is the latest system time that a block may have now.
    """
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
            f"{clock}`odf reset {handle.alias} {block}` drops the blocks after the last good one; what is still in "
            "its topics is read again"
        )
    return Problem(text=text, remedy=remedy, since=min(state.system_time, latest))


def _last_until(datasets: Datasets, state: ChainState, latest: Timestamp) -> Multihash | None:
    """Return the last block that is not later than `latest`; None if the first one is."""
    blocks = iterate(datasets.reader(state.dataset_id), state.head)
    return next((name for name, decoded, _ in blocks if decoded.block.system_time <= latest), None)
