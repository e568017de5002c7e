"""Stores the sorted runs of one index in a folder, so that a restarted process does not have to rebuild the index.

The folder is a cache. Runs that cannot be used are ignored, and rebuilt from the slices: those with another format or
definition of equality, damaged or missing files, and runs of a branch that was rolled back. If the disk is full, or
while another process writes, new runs stay in memory and are written together with a later run.

The folder has one file per run, and a manifest that lists the runs in use. The manifest is replaced atomically, so
after a kill it lists the old runs or the new ones. A process writes only while it holds the lock, and only if the
manifest has not changed since it was read. Readers need no lock, because runs are immutable.

Durability is not needed: a run that was damaged by a power cut is found by its checksum when it is opened, and rebuilt
from the slices. Large runs are synced nevertheless, because rebuilding them is slow.
"""

import contextlib
import fcntl
import io
import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import structlog

from odf_common.metadata.scalars import Strings
from odf_ingest.history.keys import VERSION, Keys
from odf_ingest.history.run_file import Run, RunLayout, RunLimits, write_merged, write_run

log = structlog.stdlib.get_logger(__name__)

MANIFEST: Final = "runs.json"
LOCK: Final = "lock"
SUFFIX: Final = ".run"
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run in use. The index is complete up to the block `head` with this run and the older ones.

    `file` is the name of its file, None if it is in memory only; `checksum` is the file's CRC-32.
    """

    run: Run
    head: str
    file: str | None = None
    checksum: int = 0


class RunFolder:
    """The folder with the files of one index."""

    def __init__(self, folder: Path, identity: Mapping[str, object], limits: RunLimits) -> None:
        """Use `folder`, which is created when needed; runs that were stored with another `identity` are ignored."""
        self._folder = folder
        self._limits = limits
        self._identity = dict(identity)

    @property
    def name(self) -> str:
        """Return the name of the folder for log messages."""
        return self._folder.name

    def stamp(self) -> Stamp | None:
        """Return a value that changes whenever the manifest is replaced; None without a manifest."""
        try:
            stat = (self._folder / MANIFEST).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def read(self) -> tuple[list[HeldRun], str | None]:
        """Return the readable runs, up to the first damaged one, and the block up to which they are complete.

        The block is None if a run is damaged, or if it is that of the last run. Raises `OSError`.
        """
        runs: list[HeldRun] = []
        try:
            manifest = _unseal((self._folder / MANIFEST).read_bytes())
            if manifest["identity"] != self._identity:
                return [], None
            for entry in manifest["runs"]:
                content = self._content(self._folder / entry["file"])
                if zlib.crc32(content) != entry["checksum"]:
                    raise ValueError(f"the checksum of {entry['file']} is wrong")
                run = Run(content, RunLayout(**entry["layout"]))
                runs.append(HeldRun(run, entry["head"], entry["file"], entry["checksum"]))
            head = manifest["head"]
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            log.warning(
                "a kept index is damaged, and comes from the slices again", index=self.name, why=str(error)
            )
            return runs, None
        return runs, None if head is None else str(head)

    @contextlib.contextmanager
    def try_lock(self) -> Iterator[bool]:
        """Hold the lock during the `with` block and yield True; yield False if another process holds it.

        Raises `OSError`.
        """
        # Without parents: a deleted dataset's folder must not appear again.
        for folder in (self._folder.parent, self._folder):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
        handle = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(handle)

    def write(self, fill: Callable[[IO[bytes]], RunLayout], head: str) -> HeldRun:
        """Write a run to a new file with `fill`, and return it; an incomplete file is removed. Raises `OSError`."""
        path = self._folder / f"{uuid.uuid4().hex}{SUFFIX}"
        try:
            with path.open("xb") as file:
                layout = fill(file)
                file.flush()
                if file.tell() >= self._limits.synced_from_bytes:
                    os.fsync(file.fileno())
            content = self._content(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return HeldRun(Run(content, layout), head, path.name, zlib.crc32(content))

    def replace(self, runs: Sequence[HeldRun], head: str | None) -> Stamp | None:
        """Replace the manifest by one that lists these runs, which all have files. Raises `OSError`."""
        entries = [
            {"file": run.file, "checksum": run.checksum, "head": run.head, "layout": asdict(run.run.layout)}
            for run in runs
        ]
        pending = self._folder / f"{uuid.uuid4().hex}.pending"
        try:
            pending.write_bytes(_seal({"identity": self._identity, "head": head, "runs": entries}))
            pending.replace(self._folder / MANIFEST)
        except BaseException:
            pending.unlink(missing_ok=True)
            raise
        return self.stamp()

    def remove(self, files: Iterable[str | None]) -> None:
        """Remove the files of unused runs; processes that have one open can still read it."""
        for file in files:
            if file is not None:
                with contextlib.suppress(OSError):
                    (self._folder / file).unlink()

    def remove_all_but(self, runs: Sequence[HeldRun]) -> None:
        """Remove all files except those of these runs: killed processes may have left some. Raises `OSError`."""
        used = {MANIFEST, LOCK, *(held.file for held in runs)}
        self.remove(path.name for path in self._folder.iterdir() if path.name not in used)

    def _content(self, path: Path) -> pa.Buffer:
        # The number of memory maps of a process is limited, so small files are read instead.
        if path.stat().st_size < self._limits.mapped_from_bytes:
            return pa.py_buffer(path.read_bytes())
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()


def _seal(manifest: Mapping[str, object]) -> bytes:
    text = json.dumps(manifest).encode()
    return b"%08x %s" % (zlib.crc32(text), text)


def _unseal(content: bytes) -> dict[str, Any]:
    checksum, _, text = content.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError("the manifest's checksum is wrong")
    manifest: dict[str, Any] = json.loads(text)
    return manifest


FORMAT: Final = 3
MAX_BLOCKS_BEHIND: Final = 64  # the manifest is rewritten after this many blocks without keys
DEFAULT_LIMITS: Final = RunLimits()
PRESENCE_COLUMN: Final = "\0is_there"  # the column that is false for a row that was retracted
Fill = Callable[[IO[bytes]], RunLayout]


class RunStore:
    """The runs of one index, oldest first. Only one thread may use it at a time."""

    def __init__(
        self,
        folder: Path | None = None,
        index: str = "keys",
        key: Strings = (),
        limits: RunLimits = DEFAULT_LIMITS,
    ) -> None:
        """Store the runs in `folder`; None: in memory only."""
        self._limits = limits
        identity = {"format": FORMAT, "equality": VERSION, "index": index, "key": list(key)}
        self._folder = None if folder is None else RunFolder(folder, identity, limits)
        self._held: list[HeldRun] = []
        self._head: str | None = None  # the block the index is complete up to, if later than the last run's
        self._lag = 0
        self._files: set[str | None] = set()  # that the manifest names
        self._stamp: Stamp | None = None
        self._has_failed = False

    @property
    def runs(self) -> Sequence[Run]:
        """Return the runs, oldest first."""
        return [held.run for held in self._held]

    @property
    def heads(self) -> Sequence[str]:
        """Return the blocks from which the index can be updated, the latest first."""
        latest = [] if self._head is None else [self._head]
        return latest + [held.head for held in reversed(self._held)]

    def load(self) -> None:
        """Read the runs on disk if none have been read yet, or if another process has written since."""
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
        """Drop the runs after a block of `heads`; None: drop all runs."""
        if head is None or head != self._head:
            self._head = None
            while self._held and self._held[-1].head != head:
                self._held.pop()

    def append(self, keys: Keys, rows: pa.Table | None, head: str) -> None:
        """Add ascending, distinct keys and their rows. A row replaces the earlier row of its key.

        The index is then complete up to the block `head`.
        """
        if len(keys) == 0:
            return
        self._held.append(_in_memory(lambda file: write_run(file, keys, rows, self._limits), head))
        self._head = None
        start = _first_to_merge([len(held.run) for held in self._held], self._limits.runs_per_merge)
        if not self._persist(start):
            self._held[start:] = [self._merge_in_memory(self._held[start:])]

    def reach(self, head: str, blocks: int) -> None:
        """Record that the index is complete up to the block `head`, which is `blocks` after the previous one."""
        if head not in self.heads[:1]:
            self._head = head
            self._lag += blocks
            if self._lag >= MAX_BLOCKS_BEHIND:
                self._persist(len(self._held))

    def _persist(self, start: int) -> bool:
        """Merge the runs from the index `start`, write all runs to disk, and return whether that succeeded."""
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
        return folder.write(self._merge_writer(held), held[-1].head)

    def _merge_in_memory(self, held: Sequence[HeldRun]) -> HeldRun:
        return held[0] if len(held) == 1 else _in_memory(self._merge_writer(held), held[-1].head)

    def _merge_writer(self, held: Sequence[HeldRun]) -> Fill:
        """Return a function that writes these runs as one; retracted rows are dropped if there is no older run."""
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
    """Return the index of the first run to merge: it and all later runs become one. The last index: merge none.

    Runs are grouped in tiers by length, from one power of `most` to the next. A tier has fewer than `most` runs.
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
