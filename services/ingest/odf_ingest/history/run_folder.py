"""A folder with the runs of one index: a file per run, and a manifest that names those in use.

The manifest is replaced as a whole, so a kill leaves the old list of runs or the new one. Only who holds the lock
writes, and only if the manifest is still the one that it knows; readers need no lock, since runs never change. Nothing
here has to be durable: what is damaged or lost in a power cut is found by its checksum, which is verified when a run is
opened, and comes from the slices again. Long runs are synced nevertheless.
"""

import contextlib
import fcntl
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

from odf_ingest.history.run_file import Run, RunLayout, RunLimits

log = structlog.stdlib.get_logger(__name__)

MANIFEST: Final = "runs.json"
LOCK: Final = "lock"
SUFFIX: Final = ".run"
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run, the block up to which it reaches, and its file with its CRC-32; None: it is in memory only."""

    run: Run
    head: str
    file: str | None = None
    checksum: int = 0


class RunFolder:
    """The files of one index."""

    def __init__(self, folder: Path, identity: Mapping[str, object], limits: RunLimits) -> None:
        """Use `folder`, created when needed; runs of another `identity` are left out."""
        self._folder = folder
        self._limits = limits
        self._identity = dict(identity)

    @property
    def name(self) -> str:
        """Return the folder's name, for the log."""
        return self._folder.name

    def stamp(self) -> Stamp | None:
        """Return a value that changes whenever the manifest is replaced; None without a manifest."""
        try:
            stat = (self._folder / MANIFEST).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def read(self) -> tuple[list[HeldRun], str | None]:
        """Return the runs, as many as are readable, and the block up to which all of them reach. Raises `OSError`."""
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
        """Hold the lock, or yield False if another process does. Raises `OSError`."""
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
        """Return the run in a new file; nothing is left of one that cannot be written. Raises `OSError`."""
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
        """Replace the manifest; all runs have files. Raises `OSError`."""
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
        """Remove files of runs that are no longer in use; who reads them still can."""
        for file in files:
            if file is not None:
                with contextlib.suppress(OSError):
                    (self._folder / file).unlink()

    def remove_all_but(self, runs: Sequence[HeldRun]) -> None:
        """Remove what killed writers left. Raises `OSError`."""
        used = {MANIFEST, LOCK, *(held.file for held in runs)}
        self.remove(path.name for path in self._folder.iterdir() if path.name not in used)

    def _content(self, path: Path) -> pa.Buffer:
        # A map takes an entry of the process's table, so short runs are read instead.
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
