"""A commit of one slice on S3, compared with the PUTs that it requires: the slice, its block, the head, in this order.

The server is the tests' MinIO (`make testsetup`) on the same disk; the peer sends as many bytes with the SDK alone.
Both are interleaved.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final

from minio import Minio
from odf_testing.coordinator import Coordinator
from odf_testing.minioserver import MinioServer, serving_s3
from odf_testing.story import as_text, root
from rows import Row, Target, held_against

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.s3.bucket_stores import S3RefStore
from odf_common.adapters.s3.location import S3Location
from odf_coordinator.commit.committer import Committed

COMMITS: Final = 60
WARM: Final = 10
SLICE_BYTES: Final = 1200
BLOCK_BYTES: Final = 500
HEAD: Final = b"f1620" + b"0" * 64
NEAR: Final = Target(judged="ratio", sense="≤", bound=2.5)


@dataclass
class BucketCoordinator(Coordinator):
    """A coordinator whose objects and references are in a bucket."""

    server: MinioServer = field(kw_only=True)
    place: S3Location = field(kw_only=True)

    def _open_stores(self) -> None:
        self.blobs = self.server.store(self.place, self.home)
        self.refs = S3RefStore(self.server.bucket(self.place))
        self.catalog = LocalCatalog(self.home)


def run() -> list[Row]:
    """Return the median of commits, and of the same PUTs alone."""
    with _coordinator() as node:
        client, bucket = node.server.client(), node.server.new_bucket().bucket
        commits, puts = [], []
        for number in range(WARM + COMMITS):
            commits.append(_commit(node, number))
            puts.append(_put_three(client, bucket, number))
    ours, limit = (median(times[WARM:]) * 1000 for times in (commits, puts))
    return [held_against("commit on S3", ours, "ms", peer=("its three PUTs alone", limit), target=NEAR)]


@contextmanager
def _coordinator() -> Iterator[BucketCoordinator]:
    with tempfile.TemporaryDirectory(prefix="s3-") as folder, serving_s3(Path(folder)) as server:
        node = BucketCoordinator(home=Path(folder) / "home", server=server, place=server.new_bucket())
        node.add(as_text(root("cities", ["event_time TIMESTAMP", "city STRING"])).decode())
        yield node


def _commit(node: BucketCoordinator, number: int) -> float:
    """Store a slice and commit it; return the seconds."""
    known = node.find("cities")
    begun = time.perf_counter()
    outcome = node.propose(known, node.ingest_events(known, [f"city {number}"], minute=number))
    seconds = time.perf_counter() - begun
    assert isinstance(outcome, Committed), outcome
    return seconds


def _put_three(client: Minio, bucket: str, number: int) -> float:
    begun = time.perf_counter()
    for key, content in (
        (f"data/{number}", bytes(SLICE_BYTES)),
        (f"blocks/{number}", bytes(BLOCK_BYTES)),
        ("head", HEAD),
    ):
        client.put_object(bucket, key, BytesIO(content), len(content))
    return time.perf_counter() - begun
