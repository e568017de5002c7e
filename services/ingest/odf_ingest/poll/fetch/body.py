"""A body that arrives in pieces, over whatever protocol: stored, hashed, limited; what may pass is tried again."""

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from odf_common.hashing.multihash import Multihash
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_ingest.poll.fetch.fetch_step import Context
from odf_ingest.poll.poll_errors import SourceUnreachable, TooLarge

T = TypeVar("T")
ATTEMPTS: Final = 3
FETCH_BACKOFF: Final = Backoff(first=0.5, most=4.0)
DOWNLOAD_SECONDS: Final = 6 * 3600.0  # for one body in total
SILENCE_SECONDS: Final = 60.0  # between two pieces
REPORT_SECONDS: Final = 0.5  # between progress reports
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Validators:
    """By what a server identifies a version of its content: `ETag` and `Last-Modified`, as far as it sends them."""

    etag: str | None = None
    modified: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A whole body, stored in the target."""

    validators: Validators
    digest: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A body that has not arrived: `label` stands for its place in messages."""

    label: str
    chunks: Iterable[bytes]
    total: int = 0
    """Bytes that the server announces; 0 if unknown."""

    def store(self, target: Path, context: Context) -> tuple[Multihash, int]:
        """Store it; return its hash and size. Raises `TooLarge`, and `SourceUnreachable` if it takes too long."""
        limit = context.limits.size
        if self.total > limit:
            raise TooLarge(what=self.label, limit=limit)
        digest, size = hashlib.sha3_256(), 0
        begun = reported = time.monotonic()
        with target.open("wb") as file:
            for chunk in self.chunks:
                context.require_wanted()
                size += len(chunk)
                if size > limit:
                    raise TooLarge(what=self.label, limit=limit)
                digest.update(chunk)
                file.write(chunk)
                now = time.monotonic()
                if now - begun > DOWNLOAD_SECONDS:
                    raise SourceUnreachable(what=self.label, why=f"slower than {DOWNLOAD_SECONDS:.0f} s")
                if now - reported > REPORT_SECONDS:
                    reported = now
                    context.report(f"{self.label}: {_amount(size, self.total)}")
        return Multihash.sha3(digest.digest()), size


def with_retry(attempt: Callable[[], T], context: Context) -> T:
    """Return the result of `attempt`, which is repeated after `SourceUnreachable`."""
    for number in range(1, ATTEMPTS):
        try:
            return attempt()
        except SourceUnreachable:
            context.require_wanted()
            time.sleep(FETCH_BACKOFF.pause(number))
    return attempt()


def _amount(size: int, total: int) -> str:
    of = f" of {total / MIB:.1f}" if total else ""
    return f"{size / MIB:.1f}{of} MiB"
