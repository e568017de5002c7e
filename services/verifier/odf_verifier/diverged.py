"""Inputs that were reset: the blocks that a derivative read are still stored, so it replays, but are in no chain."""

from collections.abc import Iterator

from odf_common.adapters.local.keys import has_dataset_key
from odf_common.chain.input_divergence import BlockIndex
from odf_common.chain.state import ChainState
from odf_common.identity.branch_names import split_ref
from odf_common.ports.store import ObjectKind, block_reader
from odf_common.service.environment import Environment
from odf_verifier.report import Damage, Problem
from odf_verifier.targets import Target


def diverged_inputs(env: Environment, target: Target, state: ChainState) -> Iterator[Problem]:
    """Yield a problem for each available input that no longer has the last block that a derivative read.

    A block that is not even stored is reported by the replay.
    """
    for done in state.input_progress:
        dataset, block = done.dataset_id, done.last_block
        entry = env.catalog.by_id(dataset)
        head = env.refs.head(dataset)
        if entry is None or head is None or block is None:
            continue
        if not env.blobs.has(dataset, ObjectKind.BLOCK, block):
            continue
        if not BlockIndex(block_reader(env.blobs, dataset), head).contains(block):
            text = (
                f"it has read block {block} of {entry.alias}, which is no longer in its chain: {entry.alias} was "
                f"reset, or has diverged; {_advice(env, target)}"
            )
            yield Problem(kind=Damage.INPUT_DIVERGED, text=text)


def _advice(env: Environment, target: Target) -> str:
    name = split_ref(target.name)[0]
    if has_dataset_key(env.settings.home / "keys", target.dataset):
        return f"`odf pull --reset-derivatives {name}` rolls it back to the last consistent block, and recomputes it"
    return f"{name} is a copy: pull it again with `odf pull URL --as {name}`"
