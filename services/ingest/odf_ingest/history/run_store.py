"""The sorted runs of one index, in a folder if there is one, so that a restart continues where the last process was.

The folder is a cache. What cannot be used is left out, and comes from the slices again: another format or definition
of equality, damage, a missing file, runs of a branch that was rolled back. On a full disk, or while another process
writes, new runs stay in memory, and are written with a later one.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import structlog

from odf_common.metadata.steps import Strings
from odf_ingest.history.equality import VERSION
from odf_ingest.history.keys import Keys
from odf_ingest.history.run_file import Run, RunLayout, RunLimits, write_merged, write_run
from odf_ingest.history.run_folder import HeldRun, RunFolder, Stamp

log = structlog.stdlib.get_logger(__name__)

FORMAT: Final = 3
MAX_BLOCKS_BEHIND: Final = 64  # blocks without keys until the manifest is rewritten
DEFAULT_LIMITS: Final = RunLimits()
PRESENCE_COLUMN: Final = "\0is_there"  # the column that is false for a row that was retracted
Fill = Callable[[IO[bytes]], RunLayout]


class RunStore:
    """Runs, the oldest first; used by one thread at a time."""

    def __init__(
        self,
        folder: Path | None = None,
        index: str = "keys",
        key: Strings = (),
        limits: RunLimits = DEFAULT_LIMITS,
    ) -> None:
        """Keep the runs in `folder`; None: in memory only."""
        self._limits = limits
        identity = {"format": FORMAT, "equality": VERSION, "index": index, "key": list(key)}
        self._folder = None if folder is None else RunFolder(folder, identity, limits)
        self._held: list[HeldRun] = []
        self._head: str | None = None  # if that is later than the last run's
        self._lag = 0
        self._files: set[str | None] = set()  # that the manifest names
        self._stamp: Stamp | None = None
        self._has_failed = False

    @property
    def runs(self) -> Sequence[Run]:
        """Return the runs, the newest last."""
        return [held.run for held in self._held]

    @property
    def heads(self) -> Sequence[str]:
        """Return the blocks from which the index can be caught up, the latest first."""
        latest = [] if self._head is None else [self._head]
        return latest + [held.head for held in reversed(self._held)]

    def load(self) -> None:
        """Adopt the runs on disk, if another process wrote them, or none were read yet."""
        if self._folder is None or (stamp := self._folder.stamp()) == self._stamp:
            return
        try:
            self._held, self._head = self._folder.read()
            self._files, self._stamp = {held.file for held in self._held}, stamp
            with self._folder.try_lock() as is_locked:
                if is_locked and self._folder.stamp() == stamp:
                    self._folder.remove_all_but(self._held)
        except OSError as error:
            # As with too many open files: nothing is removed, and the next batch tries again.
            log.warning("cannot read a kept index", index=self._folder.name, why=str(error))

    def cut(self, head: str | None) -> None:
        """Keep the runs up to a block of `heads`; None: none."""
        if head is None or head != self._head:
            self._head = None
            while self._held and self._held[-1].head != head:
                self._held.pop()

    def append(self, keys: Keys, rows: pa.Table | None, head: str) -> None:
        """Add ascending, distinct keys, and their rows, which replace those of equal keys."""
        if len(keys) == 0:
            return
        self._held.append(_in_memory(lambda file: write_run(file, keys, rows, self._limits), head))
        self._head = None
        start = _first_to_merge([len(held.run) for held in self._held], self._limits.runs_per_merge)
        if not self._persist(start):
            self._held[start:] = [self._merge_in_memory(self._held[start:])]

    def reach(self, head: str, blocks: int) -> None:
        """Record that the runs reach the block `head`, which is `blocks` later."""
        if head not in self.heads[:1]:
            self._head = head
            self._lag += blocks
            if self._lag >= MAX_BLOCKS_BEHIND:
                self._persist(len(self._held))

    def _persist(self, start: int) -> bool:
        """Merge the runs from `start`, and write what is not on disk; return whether that succeeded."""
        if self._folder is None:
            return False
        try:
            with self._folder.try_lock() as is_locked:
                if not is_locked or self._folder.stamp() != self._stamp:
                    return False
                held = [_save(self._folder, held) for held in self._held[:start]]
                if start < len(self._held):
                    held.append(self._merge(self._folder, self._held[start:]))
                self._stamp = self._folder.replace(held, self._head)
                self._held = held
                self._folder.remove(self._files - {run.file for run in held})
                self._files = {run.file for run in held}
        except OSError as error:
            if not self._has_failed:
                log.warning("an index stays in memory", index=self._folder.name, why=str(error))
            self._has_failed = True
            return False
        self._lag, self._has_failed = 0, False
        return True

    def _merge(self, folder: RunFolder, held: Sequence[HeldRun]) -> HeldRun:
        if len(held) == 1 or sum(len(run.run) for run in held) <= self._limits.keys_in_memory:
            return _save(folder, self._merge_in_memory(held))
        return folder.write(self._merging(held), held[-1].head)

    def _merge_in_memory(self, held: Sequence[HeldRun]) -> HeldRun:
        return held[0] if len(held) == 1 else _in_memory(self._merging(held), held[-1].head)

    def _merging(self, held: Sequence[HeldRun]) -> Fill:
        """Return the function that writes the runs as one; retracted rows are dropped if no older run is left."""
        runs = [run.run for run in held]
        is_oldest = held[0] is self._held[0] and runs[0].schema is not None
        drop = PRESENCE_COLUMN if is_oldest else None
        return lambda file: write_merged(file, runs, drop, self._limits)


def _save(folder: RunFolder, held: HeldRun) -> HeldRun:
    def copy(file: IO[bytes]) -> RunLayout:
        file.write(held.run.content)
        return held.run.layout

    return folder.write(copy, held.head) if held.file is None else held


def _in_memory(fill: Fill, head: str) -> HeldRun:
    file = io.BytesIO()
    layout = fill(file)
    return HeldRun(Run(pa.py_buffer(file.getvalue()), layout), head)


def _first_to_merge(lengths: Sequence[int], most: int) -> int:
    """Return from which run on all are merged into one, the last if none is.

    Of each tier of lengths, from a power of `most` to the next, there are fewer than `most` runs.
    """
    start = len(lengths) - 1
    while True:
        limit = most
        while limit <= sum(lengths[start:]):
            limit *= most
        same = start
        while same > 0 and lengths[same - 1] < limit:
            same -= 1
        if start - same < most - 1:
            return start
        start = same
