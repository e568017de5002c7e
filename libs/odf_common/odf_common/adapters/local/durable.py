"""File writes that survive a power failure, and locks between processes."""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final

from odf_common.adapters.local.faults import naming, open_file, translate_os_errors
from odf_common.errors import Unavailable
from odf_common.ports.clock import Backoff

LOCK_SECONDS: Final = 5.0  # a holder needs milliseconds; one that is stopped must not block others for long
LOCK_POLL: Final = Backoff(first=0.001, most=0.02)
PENDING: Final = ".pending-"
READABLE: Final = 0o666  # less what the umask takes
PRIVATE: Final = 0o600  # for the node's user only
PRIVATE_FOLDER: Final = 0o700
FOLDER: Final = 0o777  # less what the umask takes
PRIVATE_UMASK: Final = 0o077
_STARTED_WITH: Final[list[int]] = []  # the umask, once this process keeps its files private
MAX_OPEN_FILES: Final = 128  # files, which are open at a time
FILES_PER_SYNC: Final = 16  # of them, so that the disk confirms them together


def keep_files_private() -> int:
    """Set the umask so that new files of this process and its children are private; return the original umask.

    `share` opens those files that other users may read.
    """
    if not _STARTED_WITH:
        _STARTED_WITH.append(os.umask(PRIVATE_UMASK))
    return _STARTED_WITH[0]


def share(path: Path, mode: int) -> None:
    """Set the mode that a new file or folder would have under the original umask."""
    if _STARTED_WITH:
        path.chmod(mode & ~_STARTED_WITH[0])


def write(target: Path, content: bytes, *, mode: int = READABLE) -> None:
    """Write a file atomically and durably, replacing an existing file."""
    replace(target, content, mode=mode)
    sync_folder(target.parent)


def create(target: Path, content: bytes, *, mode: int = READABLE) -> None:
    """Create a file atomically and durably unless it exists; the first of several concurrent callers wins."""
    pending = write_pending(target, content, mode=mode)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(pending, target)  # unlike a rename, it replaces nothing
    finally:
        pending.unlink()
    sync_folder(target.parent)


def replace(target: Path, content: bytes, *, mode: int = READABLE) -> None:
    """Write a file atomically, replacing an existing file.

    Its content is durable afterwards; its name only after `sync_folder`.
    """
    pending = write_pending(target, content, mode=mode)
    with _removed_on_failure(pending):
        pending.replace(target)


def replace_all(contents: Iterable[tuple[Path, bytes]]) -> None:
    """Write several files as `replace` does; their folders must exist.

    Files are first written and then synced in groups, so that the file system commits its journal once per group.
    """
    waiting = iter(contents)
    with ThreadPoolExecutor(FILES_PER_SYNC, thread_name_prefix="sync") as pool:
        while group := tuple(islice(waiting, MAX_OPEN_FILES)):
            with contextlib.ExitStack() as stack:
                opened = [stack.enter_context(_write_unsynced(target, content)) for target, content in group]
                for synced in [pool.submit(file.sync) for file in opened]:
                    synced.result()
                for file in opened:
                    file.pending.replace(file.target)


def write_pending(target: Path, content: bytes, *, mode: int = READABLE) -> Path:
    """Write a hidden file next to `target` and return its path; its content is durable, its name is not."""
    make_folder(target.parent)
    with _write_unsynced(target, content, mode) as file:
        file.sync()
    return file.pending


@dataclass(frozen=True, slots=True)
class _Unsynced:
    """A hidden file next to `target` that is not synced yet.

    It stays open, because only an open file is sure to report errors of writing it back to the disk.
    """

    target: Path
    pending: Path
    handle: int

    def sync(self) -> None:
        with naming(self.target):
            os.fsync(self.handle)


@contextlib.contextmanager
def _write_unsynced(target: Path, content: bytes, mode: int = READABLE) -> Iterator[_Unsynced]:
    """Yield an open hidden file with this content; if the block fails, the file is removed unless it was renamed."""
    pending = pending_beside(target)
    with (
        _removed_on_failure(pending),
        open(pending, "xb", buffering=0, opener=lambda path, flags: os.open(path, flags, mode)) as file,
        naming(target),
    ):
        view = memoryview(content)
        while view:
            view = view[file.write(view) or 0 :]
        yield _Unsynced(target, pending, file.fileno())


def pending_beside(target: Path) -> Path:
    """Return a new, random hidden path next to `target`."""
    return target.with_name(f"{PENDING}{os.urandom(16).hex()}")


@contextlib.contextmanager
def _removed_on_failure(pending: Path) -> Iterator[None]:
    """Remove a pending file if the block fails, because it could occupy the last free space."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            pending.unlink()
        raise


def sweep(folder: Path, untouched_since: float) -> None:
    """Remove pending files of killed processes: those last written before `untouched_since` (epoch seconds).

    A process that was only stopped for so long fails harmlessly, because its file is gone.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 - of thousands of folders, few have such a file
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(PENDING):
            file = folder / name
            with contextlib.suppress(OSError):  # gone in the meantime, or not removable
                status = file.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_mtime < untouched_since:
                    file.unlink()


def remove(file: Path) -> None:
    """Remove a file durably, if it exists."""
    file.unlink(missing_ok=True)
    sync_folder(file.parent)


def move(source: Path, target: Path) -> None:
    """Move a complete file to `target` durably; it is copied if `target` is on another file system."""
    make_folder(target.parent)
    with open_file(source) as file, naming(source):
        os.fsync(file.fileno())
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
    sync_folder(target.parent)


def _copy(source: Path, target: Path) -> None:
    import shutil  # noqa: PLC0415 - commands copy nothing, and it imports modules for compression

    pending = pending_beside(target)
    with _removed_on_failure(pending), naming(target):
        with open_file(source) as old, pending.open("xb") as new:
            shutil.copyfileobj(old, new, 1 << 20)
            new.flush()
            os.fsync(new.fileno())
        pending.replace(target)
    source.unlink()


def exists(path: Path) -> bool:
    """Return whether a path exists, without following links; unlike `Path.exists`, it raises other errors."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def make_folder(folder: Path, mode: int = FOLDER, *, is_shared: bool = False) -> None:
    """Create a folder durably, and its missing parents; `mode` applies to the folder, not to the parents.

    If `is_shared`, all created folders get the mode that they would have under the original umask (see `share`).
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, is_shared=is_shared)
    try:
        folder.mkdir(mode)
        if is_shared:
            share(folder, mode)
    except FileExistsError:
        if not folder.is_dir():  # a file by this name
            raise
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(handle)
    finally:
        os.close(handle)


class LockHeld(Unavailable):
    """Another process has held a lock for longer than any operation needs.

    The files that the lock protects are intact, and the caller can retry later.
    """

    holder: int | None = None

    def advice(self) -> str:
        """Return the condition for the lock's release, with the process that holds it, if known."""
        if self.holder is None:
            return "the lock is released once the process that holds it continues or exits"
        return (
            f"the lock is released once process {self.holder} continues or exits: see `ps -p {self.holder}`"
        )


@contextlib.contextmanager
def lock_file(file: Path, wait_seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold a lock during the `with` block; it excludes other threads and processes.

    Raises `LockHeld` after `wait_seconds`. Only the holder may remove the lock's file; waiting processes then create
    and lock a new one.
    """
    with translate_os_errors(file):
        handle = _locked_handle(file, wait_seconds)
    try:
        yield
    finally:
        os.close(handle)


def _locked_handle(file: Path, wait_seconds: float) -> int:
    make_folder(file.parent)  # durably: who writes next to the lock takes the folder for durable
    deadline = time.monotonic() + wait_seconds
    for tries in count(1):
        handle = try_lock(file, os.O_CREAT)
        if handle is not None:
            return handle
        if time.monotonic() >= deadline:
            break
        time.sleep(LOCK_POLL.pause(tries))
    holder = _holder(file)
    by = "another process" if holder is None else f"process {holder}"
    raise LockHeld(what=f"lock {file.name}", why=f"{by} has held it for {wait_seconds:g} s", holder=holder)


def try_lock(file: Path, flags: int = 0) -> int | None:
    """Lock a file without waiting and return its handle; None if it is locked, missing or has just been removed."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    except FileNotFoundError:
        return None
    is_locked = False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = is_same_file(file, handle)
    except BlockingIOError:
        pass
    finally:
        if not is_locked:  # an error must not keep the lock, either
            os.close(handle)
    return handle if is_locked else None


def is_same_file(file: Path, handle: int) -> bool:
    """Return whether the path still refers to the open file."""
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _holder(file: Path) -> int | None:
    """Return the id of the process that holds the lock on a file; None if the system does not report it."""
    with contextlib.suppress(OSError, ValueError):
        inode = str(file.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF; a waiting one has "->" after its number
            parts = line.split()
            if len(parts) > 5 and parts[1] == "FLOCK" and parts[5].rpartition(":")[2] == inode:
                return int(parts[4]) or None
    return None
