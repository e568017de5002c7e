"""Replay: every transform is run again on the same records, and must give the same result (spec: Verifiability).

`odf_common.dataset.replay` runs a stored transform again; it is also used to rebuild dropped data. Records (logical
hash), offsets, watermark and checkpoint are compared; the encoding of the records does not matter. Problems because of
inputs that were reset, and of data that was dropped or not fetched, are reported as such.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from odf_common.adapters.local.key_files import has_dataset_key
from odf_common.chain.compare_chains import BlockIndex
from odf_common.chain.state import ChainState
from odf_common.chain.transform_steps import InputMismatch
from odf_common.chain.walk import ChainBroken, number_before
from odf_common.data.schema_evolution import align_to_schema, schema_of_event
from odf_common.data.slices import read_slice
from odf_common.dataset.dataset_notes import dropped_blocks
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.replay import Replayer, StoredTransform, differences
from odf_common.errors import Damaged, InternalError, InvalidInput, InvalidQuery, NotFound, name_dataset
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import Multihash, physical_hash
from odf_common.identity.dataset_refs import split_ref
from odf_common.metadata.events import ExecuteTransform, SetTransform
from odf_common.ports.engine import (
    Engine,
    EngineNotAvailable,
    EngineProgress,
    OnProgress,
    QueryFailed,
    QueryOutOfMemory,
    QueryTooSlow,
    ResultsChanged,
)
from odf_common.ports.store import BlobStore, ObjectKind, block_reader, scratch_folder
from odf_verifier.integrity import Link
from odf_verifier.targets import Damage, Problem, Target, block_problem


def diverged_inputs(
    datasets: NodeDatasets, keys: Path, target: Target, state: ChainState
) -> Iterator[Problem]:
    """Yield a problem for each available input whose chain no longer has the last block that a derivative has read.

    A block that is not stored is reported by the replay.
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
    """Return the problems; those of all dropped objects are combined into one."""
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
    """Return the problems. The first one of a lost object of a copy gets advice on how to fetch all data again."""
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
    """Return the name of an input whose data was dropped although this transform has read it; None if there is none."""
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
    """Return the command that pulls the first missing input; None if there is none.

    An input is missing if it was never pulled, or not up to the block that the transform has read. Lost blocks of owned
    datasets do not count: they are damage.
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


log = structlog.stdlib.get_logger(__name__)

_NOT_COMPARED: Final = frozenset(
    {Damage.ENGINE_NOT_AVAILABLE, Damage.RESULTS_CHANGED, Damage.REPLAY_REFUSED, Damage.REPLAY_FAILED}
)
_MAX_FAILURES: Final = (
    10  # of a query in a row; each may occupy the engine for as long as the time limit says
)
_CONTINUES: Final = _NOT_COMPARED | {Damage.REPLAY_MISMATCH}
_REFUSED: Final = (
    "not checked, like later blocks of the same query: the engine refuses the query: {why}; the owner of the dataset "
    "can reset it to the block before the query with `odf reset {name} {block}`, and set another one with `odf commit "
    "{name} FILE`"
)
_CHANGED: Final = (
    "not checked, like later blocks of the same query: {why}; a node with {engine} checks them, and "
    "`odf engine upgrade {name} --from-start` derives them again"
)
_NOT_MIGRATED: Final = "not checked: the engine refuses to migrate the query before: {why}"
_FAILED: Final = (
    "not checked: the query fails on what this block read: {why}; another version of the engine may have computed it, "
    "or it was written by hand; the query names {engine}"
)
_OUT_OF_MEMORY: Final = (
    "not checked: the engine ran out of memory: {why}; repeat `odf verify` when the engine is idle"
)
_NO_INPUT: Final = (
    "not checked, like later blocks: {remedy} and verify again; or check only hashes and rules with "
    "`odf verify {name} --integrity`"
)
_TOO_SLOW: Final = "not checked: {why}; raise ODF_QUERY_TIMEOUT_MS if its query is meant to take so long"
_NO_ANSWER: Final = (
    "not checked: the engine cannot run the query on what this block read: {why}; see the engine's log"
)
Outcome = tuple[int, int, Problem | None]  # transforms done, their total, the problem of the last one


class Replay:
    """Replays the transforms of one dataset."""

    def __init__(
        self,
        datasets: NodeDatasets,
        engine: Engine,
        target: Target,
        keys: Path,
        seconds: float = math.inf,
    ) -> None:
        """Prepare a replay in which each transform may run for `seconds`. Nothing is read yet.

        `keys` is the folder with the keys of the node's own datasets.
        """
        self._seconds = seconds
        self._datasets = datasets
        self._keys = keys
        self._target = target
        # `at` caches the state of an input where replay has got to, so that the next verification continues there.
        self._replayer = Replayer(
            blobs=datasets.blobs, catalog=datasets.catalog, engine=engine, state_at=datasets.states.at
        )

    def run(self, links: list[Link], since: ChainState | None) -> Iterator[Outcome]:
        """Replay the transforms among `links`, which follow the state `since`. Stop at the first that cannot be run.

        Transforms of an engine that is not installed, or of a query that the engine refuses, are reported once and
        skipped. Each transform begins at a stored checkpoint, so transforms after a failed one are run too, up to ten
        consecutive failures of a query. Failures are reported at the end: the first one of each query separately, all
        others of the query together.

        Raises `Unavailable` if the engine cannot be reached.
        """
        total = sum(isinstance(link.block.event, ExecuteTransform) for link in links)
        blocks = ((link.hash, link.block, link.version) for link in links)
        done, skipped, failed = 0, set[object](), dict[SetTransform, list[Problem]]()
        in_a_row = Counter[SetTransform]()
        for stored in self._replayer.transforms(blocks, since):
            query = stored.state.transform
            assert query is not None, "the rules have been checked: it follows a SetTransform"
            engine = query.transform.engine, query.transform.version
            if engine in skipped or query in skipped:
                continue
            problem = self._replay_one(stored)
            kind = None if problem is None else problem.kind
            if kind is Damage.ENGINE_NOT_AVAILABLE:
                skipped.add(engine)  # other transforms may be for the installed engine
            elif kind is Damage.RESULTS_CHANGED:
                skipped.add(query)
            elif kind is Damage.REPLAY_REFUSED and stored.migrated is None:
                skipped.add(query)  # a migration may be refused for the query before
            done += kind not in {*_NOT_COMPARED, Damage.INPUT_NOT_ON_NODE}
            in_a_row[query] = in_a_row[query] + 1 if kind is Damage.REPLAY_FAILED else 0
            if problem is not None and kind is Damage.REPLAY_FAILED:
                failed.setdefault(query, []).append(problem)
                problem = None
                if in_a_row[query] == _MAX_FAILURES:
                    skipped.add(query)
            yield done, total, problem
            if kind is not None and kind not in _CONTINUES:
                break
        for query, problems in failed.items():
            summary = _summary(problems, is_given_up=query in skipped)
            yield from ((done, total, problem) for problem in summary)

    def _replay_one(self, stored: StoredTransform) -> Problem | None:
        """Replay one transform; return the problem with it, or None."""
        begun = time.monotonic()
        problem = self._run(stored)
        log.debug(
            "transform replayed",
            **self._target.log_facts,
            block=str(stored.block_hash),
            sequence_number=stored.block.sequence_number,
            problem=None if problem is None else str(problem.kind),
            ms=round((time.monotonic() - begun) * 1000),
        )
        return problem

    def _run(self, stored: StoredTransform) -> Problem | None:
        problem = partial(block_problem, stored.block_hash, stored.block)
        with scratch_folder(self._datasets.blobs) as scratch:
            try:
                response = self._replayer.run(
                    stored, alias=self._target.name, scratch=scratch, on_progress=_time_limit(self._seconds)
                )
            except (EngineNotAvailable, QueryTooSlow, InvalidInput, InternalError) as error:
                return problem(*self._without_result(stored, error))
            except (NotFound, Damaged, InputMismatch, ChainBroken) as error:
                name = dropped_input(self._datasets, stored.event) if isinstance(error, NotFound) else None
                if name is not None:
                    text = (
                        f"cannot be replayed: the data of {name} was dropped; `odf pull {name}` recomputes it"
                    )
                    return problem(Damage.INPUT_DROPPED, text)
                remedy = input_not_on_node(self._datasets, self._keys, stored)
                if remedy is not None:
                    text = _NO_INPUT.format(remedy=remedy, name=split_ref(self._target.name)[0])
                    return problem(Damage.INPUT_NOT_ON_NODE, text)
                return problem(
                    Damage.INPUT_MISSING, f"an input is not available as the transform saw it: {error}"
                )
            else:
                records_hash = partial(_records_hash, stored.state, scratch / "data")
                checkpoint = _hash_of(scratch / "checkpoint")
                for text, damaged in differences(stored, response, records_hash, checkpoint):
                    return problem(Damage.REPLAY_MISMATCH, text, damaged)
                return None

    def _without_result(
        self, stored: StoredTransform, error: EngineNotAvailable | QueryTooSlow | InvalidInput | InternalError
    ) -> tuple[Damage, str]:
        """Return the kind and text of the problem with a transform that the engine has not completed."""
        query = stored.state.transform
        engine = "" if query is None else f"{query.transform.engine} {query.transform.version or ''}".strip()
        name = split_ref(self._target.name)[0]
        why = name_dataset(str(error), name)
        match error:
            case ResultsChanged():
                return Damage.RESULTS_CHANGED, _CHANGED.format(why=why, engine=engine, name=name)
            case EngineNotAvailable():
                return Damage.ENGINE_NOT_AVAILABLE, f"cannot be replayed on this node: {why}"
            case QueryTooSlow():
                return Damage.REPLAY_FAILED, _TOO_SLOW.format(why=why)
            case QueryOutOfMemory():
                return Damage.REPLAY_FAILED, _OUT_OF_MEMORY.format(why=why)
            case QueryFailed():
                return Damage.REPLAY_FAILED, _FAILED.format(why=why, engine=engine)
            case InvalidQuery():
                if stored.migrated is not None:
                    return Damage.REPLAY_REFUSED, _NOT_MIGRATED.format(why=why)
                block = number_before(self._target.reader.read_block, stored.block_hash, SetTransform)
                return Damage.REPLAY_REFUSED, _REFUSED.format(why=why, name=name, block=block)
            case _:
                return Damage.REPLAY_FAILED, _NO_ANSWER.format(why=why)


def _time_limit(seconds: float) -> OnProgress:
    """Return a callback for progress reports that raises `QueryTooSlow` once a query has run for `seconds`."""
    until = math.inf

    def check(progress: EngineProgress) -> None:
        nonlocal until
        if until == math.inf and progress.stage:
            until = time.monotonic() + seconds
        elif time.monotonic() > until:
            raise QueryTooSlow(text=f"the replay of this block did not finish within {seconds:g} s")

    return check


def _summary(failures: list[Problem], *, is_given_up: bool) -> list[Problem]:
    """Return the failures of one query; all except the first are combined into one problem."""
    later = failures[1:]
    if len(later) < 2:
        return failures
    text = (
        f"not checked either: the replay of {len(later)} later blocks of the same query fails, too, up to block "
        f"{later[-1].sequence_number}"
    )
    if is_given_up:
        text += f"; those after it are not replayed, since {_MAX_FAILURES} in a row fail"
    return [failures[0], replace(later[0], text=text)]


def _records_hash(state: ChainState, file: Path) -> Multihash:
    """Return the hash of the records in the dataset's schema, which the engine does not know."""
    records = read_slice(file)
    if state.schema is not None:
        records = align_to_schema(records, schema_of_event(state.schema), state.vocabulary)
    return logical_hash(records)


def _hash_of(file: Path) -> Multihash | None:
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return physical_hash(opened)
