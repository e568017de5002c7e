"""Reserved disk space, `$ODF_HOME/reserve`, which makes it possible to delete a dataset when the disk is full.

Deleting a dataset frees space, but it first needs some, to record what it removes. The file is allocated, not sparse.
After its release it is allocated again once the disk has room.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded_methods, size_of

RESERVE_BYTES: Final = 1 << 20  # bytes; a record needs some hundred
MIN_FREE_BYTES: Final = 64 * RESERVE_BYTES  # from which the reserve is allocated: never the last ones
_NOT_ALLOCATED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})  # by this file system


@guarded_methods
class Reserve:
    """The reserved disk space of a home; several processes may use it at the same time."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._file = home.absolute() / "reserve"

    def release(self) -> bool:
        """Free the reserved space; return whether any was reserved."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return False
        durable.sync_folder(self._file.parent)
        return True

    def refill(self) -> None:
        """Reserve the space, unless it is already reserved or the disk has little free space."""
        durable.make_folder(self._file.parent)
        # Compared by size: a process may have been killed between creating and allocating it.
        if size_of(self._file) == RESERVE_BYTES or shutil.disk_usage(self._file.parent).free < MIN_FREE_BYTES:
            return
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(handle, 0, RESERVE_BYTES)
        except OSError as error:
            if error.errno not in _NOT_ALLOCATED:
                self._file.unlink(missing_ok=True)
                raise
            os.write(handle, bytes(RESERVE_BYTES))
        finally:
            os.close(handle)
