"""Local files: copied first, so that what is hashed is what is read, and limited in size."""

import hashlib
import os
import stat
from pathlib import Path

from odf_common.hashing.multihash import Multihash
from odf_ingest.poll.fetch.fetch_step import CHUNK_BYTES, Context
from odf_ingest.poll.poll_errors import FileForbidden, FileUnreadable, NothingAtSource, TooLarge


def copy_file(source: Path, target: Path, context: Context, label: str) -> tuple[Multihash, os.stat_result]:
    """Copy a regular file; return the hash of its bytes, and its size and times as of the start."""
    require_permitted(source, context, label)
    digest, size = hashlib.sha3_256(), 0
    try:
        # A named pipe must not block the poll until it has a writer.
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as old:
            status = os.fstat(old.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NothingAtSource(what=f"a regular file at {label}")
            with target.open("wb") as new:
                while chunk := old.read(CHUNK_BYTES):
                    context.require_wanted()
                    size += len(chunk)
                    if size > context.limits.size:
                        raise TooLarge(what=label, limit=context.limits.size)
                    digest.update(chunk)
                    new.write(chunk)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NothingAtSource(what=label) from error
    except OSError as error:
        raise FileUnreadable(what=label, why=error.strerror) from error
    return Multihash.sha3(digest.digest()), status


def require_permitted(source: Path, context: Context, label: str) -> None:
    """Raise `FileForbidden` for a file among the node's keys."""
    secrets = context.limits.secrets
    if secrets is not None and source.resolve().is_relative_to(secrets.resolve()):
        raise FileForbidden(text=f"{label} is among the keys of this node, which no source may read")
