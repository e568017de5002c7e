"""Conversion of `OSError`s of the store to errors of this project; no other module does this.

Errors that last until a person repairs the cause (`EISDIR`, `ENOTDIR`, `ELOOP`, …) become `Damaged`. Missing
permissions do so too, because waiting does not restore them. All others may be transient (`EIO`, `ENOSPC`, `EMFILE`,
`ESTALE`, `EROFS`, …) and become `StorageUnavailable`.
"""

import contextlib
import errno
import inspect
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, Final, ParamSpec, TypeVar

from odf_common.errors import (
    Damaged,
    NotFound,
    OdfError,
    StorageUnavailable,
    ThreadRefused,
    VerificationFailed,
    is_transient,
    lacks_threads,
)

LASTING: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EFBIG,
        errno.EILSEQ,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENODEV,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.ENOTSUP,
        errno.ENXIO,
        errno.EPERM,
    }
)

# What is wrong and what to do, where the system's own message is not enough.
_PASSING: Final[Mapping[int, tuple[str, str]]] = {
    errno.ENOSPC: (
        "the disk is full (No space left on device)",
        "free space on the disk that holds the node's home, or enlarge it",
    ),
    errno.EDQUOT: ("the disk quota is used up", "free space, or raise the quota of the node's user"),
    errno.EMFILE: (
        "the process has too many open files",
        "raise its limit (`ulimit -n`) and restart the node",
    ),
    errno.ENFILE: ("the machine has too many open files", "raise `fs.file-max`"),
    errno.EROFS: ("the file system is read-only", "mount it writable; the kernel's log says why it is not"),
}

NOT_REGULAR: Final = "it is not a regular file"
T = TypeVar("T")
P = ParamSpec("P")


class _NotRegular(OSError):
    """A pipe, device or socket exists where a regular file is expected."""


def fault(error: OSError, file: str | Path | None = None) -> OdfError:
    """Return the error of this project for an `OSError`; `file` is used if the error does not name a file."""
    name = _relative(error.filename if isinstance(error.filename, str | Path) else file)
    why = fault_text(error)
    if error.errno == errno.ENOENT:
        return NotFound(what=name)
    if error.errno in LASTING:
        return Damaged(file=name, why=why)
    entry = None if error.errno is None else _PASSING.get(error.errno)
    return (
        StorageUnavailable(file=name, why=why)
        if entry is None
        else StorageUnavailable(file=name, why=entry[0], remedy=entry[1])
    )


def fault_text(error: OSError) -> str:
    """Return the cause of an `OSError`, without the name of the file."""
    if isinstance(error, _NotRegular):
        return NOT_REGULAR
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__


@contextlib.contextmanager
def waiting_helps() -> Iterator[None]:
    """Convert transient errors of the operating system to `StorageUnavailable` or `ThreadRefused`.

    It is for the outermost calls of a service. Other operating system errors that reach them are bugs,
    and pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if not is_transient(error):
            raise
        raise (fault(error) if isinstance(error, OSError) else ThreadRefused()) from error


@contextlib.contextmanager
def translate_os_errors(file: Path | None = None) -> Iterator[None]:
    """Convert an `OSError` to `Damaged`, `StorageUnavailable` or `NotFound`, a lack of threads to `ThreadRefused`.

    A verification error that an `OSError` has caused is converted too: a slice is not corrupt because this user may
    not open it.
    """
    try:
        yield
    except OSError as error:
        raise fault(error, file) from error
    except VerificationFailed as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno and not isinstance(error, Damaged):
            raise fault(cause, file or getattr(error, "file", None)) from error
        raise
    except Exception as error:
        if not lacks_threads(error):
            raise
        raise ThreadRefused from error


def translating_os_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Return a wrapper of the function, or of its generator, that converts errors as `translate_os_errors` does."""
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def iterate(*args: P.args, **kwargs: P.kwargs) -> Any:
            with translate_os_errors():
                yield from function(*args, **kwargs)

        return iterate

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with translate_os_errors():
            return function(*args, **kwargs)

    return call


def guarded_methods(store: type[T]) -> type[T]:
    """Wrap all public methods of a store by `translating_os_errors`; for use as a class decorator."""
    for name, member in list(vars(store).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(store, name, translating_os_errors(member))
    return store


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Add the file's name to an `OSError` that lacks it, such as those of `fsync` and `write`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(file)
        raise


class _Raw(io.FileIO):
    """A file whose reads raise errors of this project."""

    def readinto(self, buffer: Any, /) -> int | None:
        with translate_os_errors(Path(str(self.name))):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with translate_os_errors(Path(str(self.name))):
            return super().readall()


def open_to_read(file: Path) -> BinaryIO:
    """Open a regular file for reading; errors of later reads are converted too."""
    return io.BufferedReader(_Raw(file, opener=_regular))


def open_file(file: Path) -> BinaryIO:
    """Open a regular file for reading; raises `OSError` for a pipe or a device, where reading might block forever."""
    return io.BufferedReader(io.FileIO(file, opener=_regular))


def read_file(file: Path) -> bytes:
    """Return the content of a regular file; raises `OSError` as `open_file` does."""
    with open_file(file) as opened, naming(file):
        return opened.read()


def _regular(name: str, flags: int) -> int:
    handle = os.open(name, flags | os.O_NONBLOCK)  # opening a pipe does not block without a writer
    try:
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # FileIO refuses a folder itself
            raise _NotRegular(errno.EINVAL, NOT_REGULAR, name)
    except BaseException:
        os.close(handle)
        raise
    return handle


def size_of(file: Path) -> int | None:
    """Return the size of a file, None if it does not exist; raises `Damaged` if it is not a regular file."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(file=_relative(file), why=NOT_REGULAR)
    return status.st_size


def _relative(file: str | Path | None) -> str:
    """Return a path for error messages: relative to the home, so that they do not reveal where the home is.

    Paths outside of the home are reduced to their last parts.
    """
    if file is None:
        return "storage"
    parts = Path(file).parts
    for root in ("accepted", "cache", "datasets", "names", "keys", "locks", "scratch", "staging"):
        if root in parts:
            return "/".join(parts[len(parts) - 1 - parts[::-1].index(root) :])
    if not Path(file).is_absolute() or len(parts) <= len(("/", "folder", "file")):
        return str(Path(*parts[-3:]))
    return "/".join(("…", *parts[-2:]))
