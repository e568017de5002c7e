"""A folder with the runs of one index: a file per run, and a manifest that names those in use.

The manifest is replaced as a whole, so a kill leaves the old list of runs or the new one. Only who holds the lock
writes, and only if the manifest is still the one that it knows; readers need no lock, since runs never change. Nothing
here has to be durable: what is lost in a power cut is found by its checksum and comes from the slices again. Long runs
are synced nevertheless.
"""

import contextlib
import fcntl
import json
import mmap
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import structlog

from odf_ingest.history.run_file import Run, RunDamaged

log = structlog.stdlib.get_logger(__name__)

MANIFEST: Final = "runs.json"
LOCK: Final = "lock"
SUFFIX: Final = ".run"
MAPPED_FROM_BYTES: Final = 1 << 18  # longer runs are mapped, not read into memory
SYNCED_FROM_BYTES: Final = 1 << 24  # longer runs would take long to rebuild after a power cut
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run, the block up to which it reaches, and its file; None: it is in memory only."""

    run: Run
    head: str
    file: str | None = None


class RunFolder:
    """The files of one index."""

    def __init__(self, folder: Path, identity: Mapping[str, object]) -> None:
        """Use `folder`, created when needed; runs of another `identity` are left out."""
        self._folder = folder
        self._identity = dict(identity)

    @property
    def name(self) -> str:
        """Return the folder's name, for the log."""
        return self._folder.name

    def stamp(self) -> Stamp | None:
        """Return what changes whenever the manifest is replaced; None: there is none."""
        try:
            stat = (self._folder / MANIFEST).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def read(self) -> tuple[list[HeldRun], str | None]:
        """Return the runs, as many as are readable, and the block up to which all of them reach. Raises `OSError`."""
        runs: list[HeldRun] = []
        try:
            manifest = _unsealed((self._folder / MANIFEST).read_bytes())
            if manifest["identity"] != self._identity:
                return [], None
            for entry in manifest["runs"]:
                run = self._open(entry["file"], entry["size"])
                runs.append(HeldRun(run, entry["head"], entry["file"]))
            head = manifest["head"]
        except (FileNotFoundError, ValueError, KeyError, TypeError, RunDamaged) as error:
            log.warning(
                "a kept index is damaged, and comes from the slices again", index=self.name, why=str(error)
            )
            return runs, None
        return runs, None if head is None else str(head)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
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

    def write(self, fill: Callable[[IO[bytes]], object]) -> tuple[str, Run]:
        """Return a new file and its run; nothing is left of one that cannot be written. Raises `OSError`."""
        name = uuid.uuid4().hex + SUFFIX
        path = self._folder / name
        try:
            with path.open("xb") as file:
                fill(file)
                file.flush()
                if file.tell() >= SYNCED_FROM_BYTES:
                    os.fsync(file.fileno())
                size = file.tell()
            return name, self._open(name, size, is_checked=True)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def replace(self, runs: Sequence[HeldRun], head: str | None) -> Stamp | None:
        """Replace the manifest; all runs have files. Raises `OSError`."""
        entries = [{"file": held.file, "size": held.run.content.size, "head": held.head} for held in runs]
        pending = self._folder / f"{uuid.uuid4().hex}.pending"
        try:
            pending.write_bytes(_sealed({"identity": self._identity, "head": head, "runs": entries}))
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

    def _open(self, name: object, size: object, *, is_checked: bool = False) -> Run:
        handle = os.open(self._folder / Path(str(name)).name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            actual = os.fstat(handle).st_size
            if actual != size:
                # Checked before it is mapped: reading past the end of a map would kill the process.
                raise RunDamaged(None, f"{name} is cut off")
            # A map holds a file descriptor, so short runs are read instead.
            is_short = actual < MAPPED_FROM_BYTES
            content = os.read(handle, actual) if is_short else mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)
        return Run(pa.py_buffer(content), is_checked=is_checked)


def _sealed(manifest: Mapping[str, object]) -> bytes:
    text = json.dumps(manifest).encode()
    return b"%08x %s" % (zlib.crc32(text), text)


def _unsealed(content: bytes) -> dict[str, Any]:
    checksum, _, text = content.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError("the manifest's checksum is wrong")
    manifest: dict[str, Any] = json.loads(text)
    return manifest
