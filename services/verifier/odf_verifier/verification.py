"""Verification of one dataset: integrity, then replay, as a stream of progress that ends with a verdict.

The head of the last valid verdict is stored in a small file per dataset, so that the next verification can continue
from there. If a file is lost, the next verification starts at the seed.
"""

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from odf_common.adapters.local.faults import guarded_methods, translating_os_errors
from odf_common.chain.compare_chains import BlockIndex
from odf_common.chain.state import ChainState
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.ports.clock import Backoff
from odf_common.ports.engine import Engine
from odf_verifier.integrity import Link, check_chain, check_objects, check_signatures
from odf_verifier.replay import Replay, diverged_inputs, with_advice, without_dropped
from odf_verifier.targets import NOT_CHECKED, UNDECIDED, Damage, Problem, Tally, Target, state_of


@guarded_methods
class VerifiedHeads:
    """Stores the heads of valid verdicts, separately for each phase."""

    def __init__(self, folder: Path) -> None:
        """Store the files in `folder`, which is created on first use."""
        self._folder = folder

    def head(self, dataset: DatasetId, phase: str) -> Multihash | None:
        """Return the head of the last valid verdict of a phase; None if there is none."""
        try:
            return Multihash.parse(self._read_known(dataset)[phase])
        except (KeyError, TypeError, InvalidInput):
            return None

    def remember(self, dataset: DatasetId, phases: dict[str, Multihash]) -> None:
        """Store the heads of valid verdicts of several phases atomically."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(dataset)
        heads = {**self._read_known(dataset), **{phase: str(head) for phase, head in phases.items()}}
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(heads))
        temporary.replace(file)

    def _read_known(self, dataset: DatasetId) -> dict[str, str]:
        """Return the content of a dataset's file; empty if the file does not exist or is corrupt."""
        try:
            heads = json.loads(self._file(dataset).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return heads if isinstance(heads, dict) else {}

    def _file(self, dataset: DatasetId) -> Path:
        return self._folder / f"{dataset.folder}.json"


log = structlog.stdlib.get_logger(__name__)

INTEGRITY = "integrity"
BYTES = "bytes"
"""The phase that checks integrity without reading records. Its verdict is not used by other phases."""
REPLAY = "replay"
POSTPONED_BACKOFF: Final = Backoff(first=0.5, most=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationOptions:
    """The scope of a verification."""

    replay: bool = True
    """Whether transforms are replayed."""
    incremental: bool = False
    """Whether only blocks after the last valid verdict are verified."""
    reads_records: bool = True
    """Whether records of slices are checked; otherwise only bytes are hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationProgress:
    """The progress of a phase, as numbers of blocks."""

    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for one dataset."""

    head: Multihash | None
    problems: tuple[Problem, ...]
    tally: Tally

    @property
    def is_valid(self) -> bool:
        """Return whether there are no problems."""
        return not self.problems

    @property
    def is_undecided(self) -> bool:
        """Return whether there are problems, but none is damage: a check was not possible.

        For example because data was dropped, an input was not pulled, or a query could not be run.
        """
        return bool(self.problems) and all(problem.kind in UNDECIDED for problem in self.problems)

    @property
    def word(self) -> str:
        """Return the verdict as one word."""
        if self.is_valid or not self.is_undecided:
            return "valid" if self.is_valid else "invalid"
        kinds = {problem.kind for problem in self.problems}
        if Damage.DATA_DROPPED in kinds:
            return "dropped"
        return "not-checked" if kinds & NOT_CHECKED else "not-replayable"


class Verifier:
    """Verifies datasets of a node, and stores the block up to which each one is valid."""

    def __init__(
        self, datasets: NodeDatasets, engine: Engine, home: Path, *, replay_seconds: float = math.inf
    ) -> None:
        """Store verdicts in `home`, the node's home, which also has its keys.

        Each transform may run for `replay_seconds` during a replay.
        """
        self._replay_seconds = replay_seconds
        self._datasets = datasets
        self._engine = engine
        self._keys = home / "keys"
        self._verified = VerifiedHeads(home / "verified")

    @translating_os_errors
    def verify(
        self, target: Target, options: VerificationOptions
    ) -> Iterator[VerificationProgress | Verdict]:
        """Verify one dataset; the last item is the verdict.

        Raises `Unavailable` if the engine cannot be reached, or the disk cannot be used. Then there is no verdict.
        """
        tally, begun = Tally(), time.monotonic()
        since = self._since(target, options, INTEGRITY if options.reads_records else BYTES)
        links, problems = check_chain(target, since=since)
        log.debug("verification begins", **target.log_facts, ref=target.ref, blocks=len(links))
        problems += check_signatures(target, links)
        tally.blocks = len(links)
        is_broken = bool(problems)
        for done, total, new in check_objects(
            target, links, tally, reads_records=options.reads_records, since=since
        ):
            problems += new
            yield VerificationProgress(phase=INTEGRITY, done=done, total=total)
        problems = with_advice(self._keys, target, without_dropped(self._datasets.blobs, target, problems))
        # On damaged records or blocks a replay would differ for no other reason than what was found already.
        if options.replay and target.is_local and not problems:
            for item in self._replay(target, options, links, since):
                if isinstance(item, Problem):
                    problems.append(item)
                else:
                    tally.transforms = item.done
                    yield item
        head = links[-1].hash if links else None if since is None else since.head
        if options.replay and target.is_local and not is_broken and head is not None:
            state = state_of(self._datasets, target.dataset, target.ref, head)
            problems += diverged_inputs(self._datasets, self._keys, target, state)
        verdict = Verdict(head=head, problems=tuple(problems), tally=tally)
        if verdict.is_valid and self._is_remembered(target) and head is not None:
            checked = {BYTES: True, INTEGRITY: options.reads_records, REPLAY: options.replay}
            self._remember(target, {phase: head for phase, is_checked in checked.items() if is_checked})
        _log_verdict(target, verdict, begun)
        yield verdict

    def _replay(
        self, target: Target, options: VerificationOptions, links: list[Link], since: ChainState | None
    ) -> Iterator[VerificationProgress | Problem]:
        """Replay the blocks that have not been replayed before; these may be more than those of the integrity check."""
        begin = self._since(target, options, REPLAY)
        if (begin.head if begin else None) != (since.head if since else None):
            links, lost = check_chain(target, since=begin)
            if lost:  # the chain broke after its integrity was checked: nothing can be replayed on it
                yield from lost
                return
        replay = Replay(self._datasets, self._engine, target, self._keys, self._replay_seconds)
        for done, total, problem in replay.run(links, begin):
            if problem is not None:
                yield problem
            yield VerificationProgress(phase=REPLAY, done=done, total=total)

    def _remember(self, target: Target, phases: dict[str, Multihash]) -> None:
        """Store a valid verdict. If that fails, the next verification only takes longer."""
        try:
            self._verified.remember(target.dataset, phases)
        except OdfError as error:
            log.warning("the verdict could not be stored", **target.log_facts, why=str(error))

    def _is_remembered(self, target: Target) -> bool:
        """Return whether verdicts of the target are stored; only those of heads of local datasets are."""
        return target.is_local and target.ref == HEAD

    def _holds(self, target: Target, block: Multihash) -> bool:
        """Return whether the chain still has a block. Only the blocks after it are read."""
        head = target.reader.head(target.ref)
        return head is not None and BlockIndex(target.reader.read_block, head).contains(block)

    def _since(self, target: Target, options: VerificationOptions, phase: str) -> ChainState | None:
        if not options.incremental or not self._is_remembered(target):
            return None
        try:
            head = self._verified.head(target.dataset, phase)
            if head is None:
                return None
            if not self._holds(target, head):
                log.warning("verifying from the seed", **target.log_facts, why="the dataset was reset")
                return None
            log.debug(
                "verifying from the last good verdict", **target.log_facts, phase=phase, block=str(head)
            )
            return self._datasets.states.at(target.dataset, head)
        except OdfError as error:
            log.warning("verifying from the seed", **target.log_facts, why=str(error))
            return None


def _log_verdict(target: Target, verdict: Verdict, begun: float) -> None:
    log.debug(
        "verification ends",
        **target.log_facts,
        verdict=verdict.word,
        problems=[str(problem.kind) for problem in verdict.problems],
        head=None if verdict.head is None else str(verdict.head),
        blocks=verdict.tally.blocks,
        bytes=verdict.tally.bytes,
        transforms=verdict.tally.transforms,
        ms=round((time.monotonic() - begun) * 1000),
    )


class OnCommit:
    """Verifies datasets after commits. Several commits of a dataset in the queue cause only one verification."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._waiting: dict[str, Target] = {}
        self._changed = threading.Condition()

    def add(self, target: Target) -> None:
        """Queue a dataset that has new blocks."""
        with self._changed:
            is_queued = target.name in self._waiting
            self._waiting[target.name] = target
            self._changed.notify()
            waiting = len(self._waiting)
        log.debug("verification queued", **target.log_facts, is_queued=is_queued, waiting=waiting)

    def run(self, stop: threading.Event) -> None:
        """Verify queued datasets until `stop` is set.

        If the engine or the disk is unavailable, the dataset is verified again later, with growing pauses. After any
        other error it is verified again after its next commit. All errors are logged.
        """
        failures = 0
        while not stop.is_set():
            target = self._next()
            if target is None:
                continue
            try:
                self._verify(target)
            except OdfError as error:
                failures += 1
                report = log.warning if failures == 1 else log.debug
                report("verification postponed", **target.log_facts, why=str(error))
                if isinstance(error, Unavailable):
                    self._postpone(target)
                    stop.wait(POSTPONED_BACKOFF.pause(failures))
            else:
                failures = 0

    def _postpone(self, target: Target) -> None:
        """Add a dataset to the end of the queue, unless a commit has added it in the meantime."""
        with self._changed:
            self._waiting.setdefault(target.name, target)

    def _next(self) -> Target | None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._waiting), 0.5):
                return None
            name = next(iter(self._waiting))
            return self._waiting.pop(name)

    def _verify(self, target: Target) -> None:
        # Bytes only: the records were hashed just before by the proposer; `odf verify` reads them again.
        options = VerificationOptions(incremental=True, reads_records=False)
        for item in self._verifier.verify(target, options):
            if isinstance(item, Verdict) and not item.is_valid:
                first = item.problems[0]
                report = log.warning if item.is_undecided else log.error
                facts = {"kind": str(first.kind), "block": str(first.block), "object": str(first.object)}
                report("verification failed", **target.log_facts, **facts, text=first.text)
