"""Brings datasets up to date on demand: polls or drains the sources of roots, and transforms derivatives.

Datasets that do not depend on each other are pulled concurrently.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from queue import SimpleQueue
from threading import Event
from typing import Final, Generic, TypeVar

import structlog

from odf_common.dataset.open_rejects import Rejects
from odf_common.errors import OdfError, Unavailable, with_advice
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId, is_pattern, matching_names
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress, EngineSilent
from odf_common.ports.store import DatasetUnknown
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, KeyStore, Unreadable, inputs_among
from odf_coordinator.commit.committer import retry_on_conflict
from odf_coordinator.operations.drop_and_rebuild import DataRebuilder
from odf_coordinator.operations.reset_and_commit import DatasetEditor
from odf_coordinator.operations.rollback import DerivativeRollback
from odf_coordinator.operations.waiting import Wait, Waiting
from odf_coordinator.transforms.runner import late_rows
from odf_coordinator.transforms.scheduler import Scheduler

T = TypeVar("T")
S = TypeVar("S")
Steps = Callable[[T], Generator[S, None, None]]


def concurrent_steps(
    before: Mapping[T, Collection[T]], steps: Steps[T, S], limit: Callable[[T], int]
) -> Generator[S, None, None]:
    """Run `steps(key)` for each key in a thread, and yield the steps of all.

    `before` has for each key the keys that must end before it starts. At most `limit(key)` keys with the same limit run
    at a time. Keys in a cycle, and those that depend on them, start last, in the order of the mapping. Raises errors of
    `steps`. When the iterator is closed, running generators are closed after their next step, without waiting for them.
    """
    sorter = TopologicalSorter(before)
    with suppress(CycleError):  # the sorter still yields all keys that no cycle blocks
        sorter.prepare()
    waiting = dict.fromkeys(before)
    with closing(_Running(steps, limit)) as running:
        while True:
            # Nothing runs and nothing is ready: the rest are in a cycle, or depend on one.
            ready = sorter.get_ready() or (() if running.count else tuple(waiting))
            for key in ready:
                del waiting[key]
            running.start(ready)
            if not running.count:
                return
            item = running.next()
            if not isinstance(item, _Completion):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                with suppress(ValueError):  # a key in a cycle
                    sorter.done(item.key)


@dataclass(frozen=True, slots=True)
class _Completion(Generic[T]):
    key: T
    error: BaseException | None = None


class _Running(Generic[T, S]):
    """The running generators, with one thread pool per limit."""

    def __init__(self, steps: Steps[T, S], limit: Callable[[T], int]) -> None:
        self._steps = steps
        self._limit = limit
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._queue: SimpleQueue[S | _Completion[T]] = SimpleQueue()
        self._is_left = Event()
        self.count = 0
        """Generators that were started, and whose end `next` has not returned."""

    def start(self, keys: Iterable[T]) -> None:
        for key in keys:
            limit = self._limit(key)
            if limit not in self._pools:
                self._pools[limit] = ThreadPoolExecutor(limit, thread_name_prefix="steps")
            self._pools[limit].submit(self._run, key)
            self.count += 1

    def next(self) -> S | _Completion[T]:
        """Wait for the next step of any generator, or for the end of one."""
        outcome = self._queue.get()
        self.count -= isinstance(outcome, _Completion)
        return outcome

    def close(self) -> None:
        self._is_left.set()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, key: T) -> None:
        try:
            with closing(self._steps(key)) as steps:
                for step in steps:
                    if self._is_left.is_set():
                        return
                    self._queue.put(step)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._queue.put(_Completion(key, error))
        else:
            self._queue.put(_Completion(key))


NO_REJECTS: Final = Rejects()
log = structlog.stdlib.get_logger(__name__)

CALLER_CHECK_SECONDS: Final = 0.5  # between checks whether the caller is still connected
ENGINE_TIMEOUT_SECONDS: Final = 300.0  # that the engine may be unavailable
# They mostly wait for servers of others; derivatives share the engine, so they take turns.
MAX_CONCURRENT_ROOTS: Final = 16

Found = DatasetHandle | Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """The progress of pulling a dataset.

    `state` is reset, waiting, running, updated, rebuilt, up-to-date or failed.
    """

    alias: str
    state: str
    new_blocks: int = 0
    new_records: int = 0
    error: str = ""
    head: Multihash | None = None
    progress: EngineProgress | None = None  # while the engine is running
    new_late: int = 0  # rows dropped because they were too late for their windows
    rejects: Rejects = NO_REJECTS  # rejected messages that await a decision
    wait: Wait | None = None  # what a derivative waits for after it has read everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Puller:
    """Pulls datasets."""

    datasets: Datasets
    scheduler: Scheduler
    editor: DatasetEditor
    drain: Callable[[DatasetId], Iterator[int]]
    """Waits until all current messages of a dataset's push sources are committed; yields the number that still wait."""
    poll: Callable[[DatasetId], Generator[str, None, None]]
    """Commits all new data of a dataset's polling source; yields its progress."""
    keys: KeyStore
    rollback: DerivativeRollback
    rebuilder: DataRebuilder
    waiting: Waiting
    roots_at_once: int = MAX_CONCURRENT_ROOTS

    def pull(
        self, refs: Iterable[str], *, is_all: bool, is_recursive: bool, is_wanted: Callable[[], bool]
    ) -> Iterator[PullProgress]:
        """Pull the datasets and yield the progress; stop early once `is_wanted` returns False.

        A dataset that fails does not stop the others.
        """
        named, like = ([], [*self.datasets.scan()]) if is_all else self._resolve(refs)
        handles = [*named, *like]
        chosen, explicit = self._select_datasets(named, like, is_recursive=is_recursive)
        yield from self._pull(chosen, explicit, is_wanted)
        yield from map(_unread, _unreadable(handles))

    def derive_again(
        self, refs: Iterable[str], *, is_recursive: bool, is_wanted: Callable[[], bool]
    ) -> Iterator[PullProgress]:
        """Roll back the derivatives that have diverged from their inputs, then pull these and `refs`.

        The given datasets and everything derived from them are checked; without `refs`, all datasets. Raises
        `HeadMoved` if the rollback fails repeatedly because of concurrent commits.
        """
        refs = tuple(refs)
        named, like = self._resolve(refs)
        handles = [*named, *like]
        chosen, _ = self._select_datasets(named, like, is_recursive=is_recursive)
        looked_at = self.rollback.downstream(chosen.values() if refs else self.datasets.all())
        rolled_back: dict[DatasetId, DatasetHandle] = {}

        def roll_back() -> None:
            # Readers go first, so a worker may recompute one from an input that is rolled back later: repeat.
            while handles := {handle.id: handle for handle in self.rollback.roll_back(looked_at)}:
                rolled_back.update(handles)

        retry_on_conflict(roll_back)
        for handle in rolled_back.values():
            yield PullProgress(alias=handle.alias, state="reset", head=handle.state.head)
        yield from self._pull(chosen | rolled_back, set(), is_wanted)  # copies may be given for their readers
        yield from map(_unread, _unreadable(handles))

    def _select_datasets(
        self, named: Iterable[Found], like: Iterable[Found], *, is_recursive: bool
    ) -> tuple[dict[DatasetId, DatasetHandle], set[DatasetId]]:
        """Return the datasets to pull, without unreadable ones, and the ids of those that were given by name."""
        explicit = {handle.id: handle for handle in named if isinstance(handle, DatasetHandle)}
        chosen = explicit | {handle.id: handle for handle in like if isinstance(handle, DatasetHandle)}
        if is_recursive:
            chosen = self._with_inputs(chosen)
        return chosen, set(explicit)

    def _pull(
        self,
        chosen: Mapping[DatasetId, DatasetHandle],
        explicit: set[DatasetId],
        is_wanted: Callable[[], bool],
    ) -> Iterator[PullProgress]:
        """Pull concurrently, each dataset after its inputs. A slow source delays only the datasets derived from it."""

        def steps(dataset: DatasetId) -> Generator[PullProgress, None, None]:
            return self._steps(chosen[dataset], is_wanted, is_explicit=dataset in explicit)

        def limit(dataset: DatasetId) -> int:
            return 1 if chosen[dataset].is_derivative else self.roots_at_once

        yield from concurrent_steps(inputs_among(chosen), steps, limit)

    def _steps(
        self, handle: DatasetHandle, is_wanted: Callable[[], bool], *, is_explicit: bool
    ) -> Generator[PullProgress, None, None]:
        yield PullProgress(alias=handle.alias, state="running", head=handle.state.head)
        try:
            yield from self.pull_one(handle, is_wanted, is_explicit=is_explicit)
        except OdfError as error:
            yield self._failure(handle, error)
        except Exception as error:
            log.exception("pull failed: a bug", **handle.log_facts)
            text = f"{type(error).__name__} in the coordinator; see its log"
            yield PullProgress(alias=handle.alias, state="failed", error=text, head=handle.state.head)

    def _failure(self, handle: DatasetHandle, error: OdfError) -> PullProgress:
        """Return the progress of a pull that failed, with the blocks that were committed before the failure."""
        text, stall = with_advice(error), self.scheduler.stall_of(handle.id)
        if stall is not None and stall.reason == text:  # an error of a query, which does not know the dataset
            text = f"{text}; {stall.remedy}"
        failed = PullProgress(alias=handle.alias, state="failed", error=text, head=handle.state.head)
        try:
            done = self._outcome(handle)
        except OdfError:  # its chain cannot be read any more
            return failed
        return replace(failed, new_blocks=done.new_blocks, new_records=done.new_records, head=done.head)

    def pull_one(
        self, handle: DatasetHandle, is_wanted: Callable[[], bool], *, is_explicit: bool
    ) -> Generator[PullProgress, None, None]:
        """Pull one dataset, and yield its progress; raises what it fails with."""
        late = late_rows(self.datasets.blobs, handle.id)
        is_rebuilt = yield from self._update(handle, is_wanted, is_explicit=is_explicit)
        outcome = self._outcome(handle, is_rebuilt=is_rebuilt)
        yield replace(outcome, new_late=late_rows(self.datasets.blobs, handle.id) - late)

    def _resolve(self, refs: Iterable[str]) -> tuple[list[Found], list[Found]]:
        """Return the datasets that were given by name, and those that match a pattern.

        Raises `DatasetUnknown` and `NothingCovered`.
        """
        refs = tuple(refs)
        named = [self._find(ref) for ref in refs if not is_pattern(ref)]
        patterns = [ref for ref in refs if is_pattern(ref)]
        by_alias = {dataset.entry.alias: dataset for dataset in self.datasets.scan()} if patterns else {}
        return named, [by_alias[name] for name in matching_names(patterns, by_alias)]

    def _find(self, ref: str) -> Found:
        handle = self.datasets.read(self.datasets.entry(ref))
        if handle is None:
            raise DatasetUnknown(what=ref)
        return handle

    def set_watermarks(self, refs: Iterable[str], watermark: Timestamp) -> Iterator[PullProgress]:
        """Raise the watermarks of roots, and yield the result for each; the first error ends the operation."""
        for handle in [self.datasets.find(ref) for ref in refs]:
            self.editor.set_watermark(str(handle.id), watermark)
            yield self._outcome(handle)

    def _update(
        self, handle: DatasetHandle, is_wanted: Callable[[], bool], *, is_explicit: bool
    ) -> Generator[PullProgress, None, bool]:
        """Bring a dataset up to date and yield the progress; return whether dropped data was rebuilt."""
        is_rebuilt = self.rebuilder.is_needed(handle)
        if not self.keys.has(handle.id):
            if not is_explicit:
                return False  # copies are skipped unless given by name
            if not is_rebuilt:
                self.editor.committer.require_owned(handle.id)
            yield from self._rebuild(handle, is_wanted)
            return True
        if is_rebuilt:
            yield from self._rebuild(handle, is_wanted)
        if handle.is_derivative:
            yield from self._await_transform(handle, is_wanted)
        elif handle.state.polling_source is not None:
            yield from self._poll(handle, is_wanted)
        elif handle.state.push_sources:
            self.editor.creator.create_missing_topics(handle)
            for waiting in self.drain(handle.id):
                if waiting:
                    yield PullProgress(alias=handle.alias, state="waiting", head=handle.state.head)
        return is_rebuilt

    def _poll(self, handle: DatasetHandle, is_wanted: Callable[[], bool]) -> Iterator[PullProgress]:
        with contextlib.closing(self.poll(handle.id)) as stages:
            for stage in stages:
                progress = EngineProgress(stage=stage)
                yield PullProgress(
                    alias=handle.alias, state="running", head=handle.state.head, progress=progress
                )
                if not is_wanted():
                    return

    def _rebuild(self, handle: DatasetHandle, is_wanted: Callable[[], bool]) -> Iterator[PullProgress]:
        for _ in self.rebuilder.rebuild(handle):
            yield PullProgress(alias=handle.alias, state="running", head=handle.state.head)
            if not is_wanted():
                return  # the next pull continues from here
        self.editor.committer.announce(handle.state)  # its readers may continue

    def _await_transform(
        self, handle: DatasetHandle, is_wanted: Callable[[], bool]
    ) -> Iterator[PullProgress]:
        """Request a transform, and yield its progress until it has ended.

        It starts after this call, so it includes all current data of the inputs. Raises the error of the transform,
        `EngineSilent`, and `Unavailable` if a service that the transform needs stays unavailable.
        """
        ticket = self.scheduler.request(handle.id)
        deadline = time.monotonic() + ENGINE_TIMEOUT_SECONDS
        while is_wanted():
            result = self.scheduler.wait(handle.id, ticket, CALLER_CHECK_SECONDS)
            if result is not None:
                if result.error is not None:
                    raise result.error
                return
            # A transform that an engine does not respond to is repeated; its caller need not wait for that.
            if self.scheduler.running.has_silence():
                raise EngineSilent
            lost = self.scheduler.missing_dependency(handle.id)
            if not lost:
                deadline = time.monotonic() + ENGINE_TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                raise Unavailable(what="the engine", why=lost)
            yield PullProgress(
                alias=handle.alias,
                state="waiting" if lost else "running",
                head=handle.state.head,
                progress=self.scheduler.running.progress_of(handle.id),
            )

    def _outcome(self, before: DatasetHandle, *, is_rebuilt: bool = False) -> PullProgress:
        """Return the result of a pull: the numbers of blocks and records that were added since `before`."""
        after = self.datasets.find(str(before.id))
        now = after.state
        blocks = now.sequence_number - before.state.sequence_number
        rejects = self.datasets.rejects(after)
        return PullProgress(
            alias=before.alias,
            state="updated" if blocks else "rebuilt" if is_rebuilt else "up-to-date",
            new_blocks=max(blocks, 0),
            new_records=max(now.next_offset - before.state.next_offset, 0),
            head=now.head,
            rejects=rejects,
            wait=self.waiting.wait_of(after),
        )

    def _with_inputs(self, chosen: Mapping[DatasetId, DatasetHandle]) -> dict[DatasetId, DatasetHandle]:
        """Return the datasets with all their direct and indirect inputs, except unreadable ones."""
        handles = dict(chosen)
        pending = [*handles.values()]
        while pending:
            for dataset in pending.pop().inputs():
                entry = None if dataset in handles else self.datasets.catalog.by_id(dataset)
                handle = None if entry is None else self.datasets.read(entry)
                if isinstance(handle, DatasetHandle):
                    handles[dataset] = handle
                    pending.append(handle)
        return handles


def _unreadable(datasets: Iterable[Found]) -> Iterator[Unreadable]:
    return (dataset for dataset in datasets if isinstance(dataset, Unreadable))


def _unread(dataset: Unreadable) -> PullProgress:
    """Return the progress of the failed pull of a dataset that cannot be read."""
    text = "; ".join(text for text in (f"cannot be read: {dataset.why}", dataset.remedy) if text)
    return PullProgress(alias=dataset.entry.alias, state="failed", error=text)
