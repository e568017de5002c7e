"""Findings with an explanation: inputs that were reset, data that was dropped on purpose, and lost data of a copy.

The blocks that a derivative read from an input before its reset are still stored, so it replays; but they are in no
chain. Missing objects are compared with the node's own marker of what it dropped.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from odf_common.adapters.local.key_files import has_dataset_key
from odf_common.chain.compare_chains import BlockIndex
from odf_common.chain.state import ChainState
from odf_common.dataset.dataset_notes import dropped_blocks
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.replay import StoredTransform
from odf_common.identity.dataset_refs import split_ref
from odf_common.metadata.events import ExecuteTransform
from odf_common.ports.store import BlobStore, ObjectKind, block_reader
from odf_verifier.targets import Damage, Problem, Target


def diverged_inputs(
    datasets: NodeDatasets, keys: Path, target: Target, state: ChainState
) -> Iterator[Problem]:
    """Yield a problem for each available input that no longer has the last block that a derivative read.

    A block that is not even stored is reported by the replay.
    """
    for done in state.input_progress:
        dataset, block = done.dataset_id, done.last_block
        entry = datasets.catalog.by_id(dataset)
        head = datasets.refs.head(dataset)
        if entry is None or head is None or block is None:
            continue
        if not datasets.blobs.has(dataset, ObjectKind.BLOCK, block):
            continue
        if not BlockIndex(block_reader(datasets.blobs, dataset), head).contains(block):
            text = (
                f"it has read block {block} of {entry.alias}, which is no longer in its chain: {entry.alias} was "
                f"reset, or has diverged; {_advice(keys, target)}"
            )
            yield Problem(kind=Damage.INPUT_DIVERGED, text=text)


def _advice(keys: Path, target: Target) -> str:
    name = split_ref(target.name)[0]
    if has_dataset_key(keys, target.dataset):
        return f"`odf pull --reset-derivatives {name}` rolls it back to the last consistent block, and recomputes it"
    return f"{name} is a copy: pull it again with `odf pull URL --as {name}`"


def without_dropped(blobs: BlobStore, target: Target, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems, with a single one for all dropped objects."""
    explained = list(problems)
    if not target.is_local or all(problem.kind is not Damage.OBJECT_MISSING for problem in explained):
        return explained  # the notes in a foreign folder are not trusted
    dropped = dropped_blocks(blobs, target.dataset)
    if dropped is None:
        return explained
    rest = [
        problem
        for problem in explained
        if problem.kind is not Damage.OBJECT_MISSING
        or problem.block is None
        or not dropped.contains(problem.block)
    ]
    if len(rest) == len(explained):
        return explained
    text = f"its data was dropped; `odf pull {split_ref(target.name)[0]}` recomputes it"
    return [*rest, Problem(kind=Damage.DATA_DROPPED, text=text)]


def with_advice(keys: Path, target: Target, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems; the first lost object of a copy gets advice on how to fetch all again."""
    explained = list(problems)
    if not target.is_local or has_dataset_key(keys, target.dataset):
        return explained
    name = split_ref(target.name)[0]
    for index, problem in enumerate(explained):
        if problem.kind is Damage.OBJECT_MISSING:
            text = f"{problem.text}; {name} is a copy: `odf pull URL --as {name} --recheck` fetches lost files again"
            explained[index] = replace(problem, text=text)
            break
    return explained


def dropped_input(datasets: NodeDatasets, event: ExecuteTransform) -> str | None:
    """Return the name of an input whose data for this transform was dropped; None if nothing was."""
    for step in event.query_inputs:
        entry = datasets.catalog.by_id(step.dataset_id)
        block = step.new_block_hash
        if entry is None or block is None or not datasets.blobs.has(step.dataset_id, ObjectKind.BLOCK, block):
            continue
        dropped = dropped_blocks(datasets.blobs, step.dataset_id)
        if dropped is not None and dropped.contains(block):
            return entry.alias
    return None


def input_not_on_node(datasets: NodeDatasets, keys: Path, stored: StoredTransform) -> str | None:
    """Return the command that gets the first input that was never pulled, or not up to the block that was read.

    None without one.
    Lost blocks of the node's own datasets are damage.
    """
    query = stored.state.transform
    names = {} if query is None else {one.dataset_ref: one.alias for one in query.inputs}
    for step in stored.event.query_inputs:
        dataset, block = step.dataset_id, step.new_block_hash or step.prev_block_hash
        entry = datasets.catalog.by_id(dataset)
        if entry is None:
            alias = names.get(str(dataset))
            name = f"{alias} ({dataset})" if alias else str(dataset)
            return f"its input {name} is not on this node; pull it with `odf pull URL`"
        is_copy = not has_dataset_key(keys, dataset)
        if is_copy and block is not None and not datasets.blobs.has(dataset, ObjectKind.BLOCK, block):
            return (
                f"the copy of its input {entry.alias} ends before block {block}; run `odf pull {entry.alias}`"
            )
    return None
