"""A MinIO server, which keeps its buckets in a folder."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import urllib3
from minio import Minio
from minio.credentials.providers import StaticProvider
from minio.error import MinioException
from minio.minioadmin import MinioAdmin

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.adapters.s3.bucket import PART_BYTES, Bucket
from odf_common.adapters.s3.bucket_stores import S3BlobStore
from odf_common.adapters.s3.cache import ObjectCache
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_testing.killed_process import freeze

PROGRAMS = Path(sys.prefix) / "share" / "odf" / "minio"  # where `make testsetup` builds it
START_SECONDS = 30
LOOK_SECONDS = 0.02
ACCESS_KEY, SECRET_KEY = "test-access", "test-secret-that-must-not-be-shown"
REGION = "us-east-1"
CACHE_BYTES = 1 << 30
LARGE = bytes(range(256)) * (PART_BYTES // 256) + b"the second part"  # of an upload in parts


def program() -> str:
    """Return the server's program; fails, and does not skip, if it has not been built."""
    found = next(iter(sorted(PROGRAMS.glob("v*"))), None) or shutil.which("minio")
    assert found is not None, "MinIO has not been built; run `make testsetup`"
    return str(found)


@dataclass(slots=True, kw_only=True)
class MinioServer:
    """A server on a loopback port that can be stopped, paused and started again."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    @property
    def endpoint(self) -> str:
        """Return its address as a URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def access(self) -> S3Access:
        """Return its credentials."""
        return S3Access(endpoint=self.endpoint, region=REGION, access_key=ACCESS_KEY, secret_key=SECRET_KEY)

    def start(self) -> None:
        """Start it, and wait until it serves."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MINIO_")},
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "HOME": str(self.folder),
        }
        command = [program(), "server", "--quiet", "--address", f"127.0.0.1:{self.port}", "data"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS
        while not self._is_ready():
            is_late = time.monotonic() > until or self.process.poll() is not None
            assert not is_late, (self.folder / "log").read_text()
            time.sleep(LOOK_SECONDS)

    def _is_ready(self) -> bool:
        # It reports to be ready a little before it answers requests.
        try:
            self.client().list_buckets()
        except (MinioException, urllib3.exceptions.HTTPError):
            return False
        return True

    def stop(self) -> None:
        """Kill it; what it confirmed is in its folder."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it accept connections and answer nothing."""
        assert self.process is not None
        freeze(self.process)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def client(self) -> Minio:
        """Return a client that does not use the code under test, and asks once."""
        pool = urllib3.PoolManager(timeout=START_SECONDS, retries=False)
        host = f"127.0.0.1:{self.port}"
        return Minio(host, ACCESS_KEY, SECRET_KEY, secure=False, region=REGION, http_client=pool)

    def reader(self, bucket: str) -> S3Access:
        """Return the credentials of a new user who may get a bucket's objects, and neither list nor write any."""
        user, secret = f"u{uuid4().hex[:16]}", uuid4().hex
        statement = {
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": [f"arn:aws:s3:::{bucket}/*"],
        }
        admin = MinioAdmin(
            endpoint=f"127.0.0.1:{self.port}",
            credentials=StaticProvider(ACCESS_KEY, SECRET_KEY),
            region=REGION,
            secure=False,
        )
        admin.user_add(user, secret)
        admin.policy_add(user, policy={"Version": "2012-10-17", "Statement": [statement]})
        admin.policy_set(user, user=user)
        return replace(self.access, access_key=user, secret_key=secret)

    def new_bucket(self, prefix: str = "") -> S3Location:
        """Create an empty bucket."""
        location = S3Location(bucket=f"b{uuid4().hex}", prefix=prefix, endpoint=self.endpoint)
        self.client().make_bucket(location.bucket)
        return location

    def bucket(self, location: S3Location) -> Bucket:
        """Return the adapter of a place in it."""
        return Bucket(location, self.access)

    def store(self, location: S3Location, home: Path) -> S3BlobStore:
        """Return the blob store of a node in a place of it."""
        cache = ObjectCache(home / "cache", CACHE_BYTES)
        return S3BlobStore(self.bucket(location), local=LocalBlobStore(home), cache=cache)

    def objects(self, location: S3Location) -> Mapping[str, bytes]:
        """Return all objects below a place, by key relative to it."""
        client, start = self.client(), f"{location.prefix}/" if location.prefix else ""
        keys = [str(item.object_name) for item in client.list_objects(location.bucket, start, recursive=True)]
        found = {}
        for key in keys:
            with contextlib.closing(client.get_object(location.bucket, key)) as response:
                found[key.removeprefix(start)] = response.read()
        return found


@contextmanager
def serving_s3(folder: Path) -> Iterator[MinioServer]:
    """Run a server inside the block."""
    port = allocate(folder, ("server",))["server"]
    server = MinioServer(folder=folder, port=port)
    server.start()
    try:
        yield server
    finally:
        server.stop()
