"""Transfers with either side killed at each step: nothing half-written is visible, and a repetition completes them.

The killed side is a separate process, which gets a SIGKILL; the other one continues, and sees its connections end. The
usual run kills it before every fifth step, `make soak` before every one.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml
from odf_testing.chains import read_chain
from odf_testing.killed_process import Command, Killable, be_quick, killable
from odf_testing.killer import first_write
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.story import derivative, root
from odf_testing.sync_node import SyncNode

from odf_common.adapters.s3.location import S3Location
from odf_common.dataset.dataset_notes import remote_aliases
from odf_common.errors import OdfError
from odf_common.hashing.multihash import Multihash
from odf_sync.transfer.partial_files import KEPT_SECONDS, sweep

ROOT: Final = root("source", ["event_time TIMESTAMP", "city STRING"])
CITIES: Final = derivative("cities", {"source": "source"}, "SELECT * FROM source")
LATER_SECONDS: Final = KEPT_SECONDS + 24 * 3600
OF_PROCESSES: Final = (
    "cache",
    "locks",
    "scratch",
)  # folders of a home: copies, empty files, and temporary files


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A kind of transfer, and which end of it is killed."""

    act: str
    scheme: str
    kills_server: bool = False
    is_update: bool = False
    """The receiver has the first blocks."""
    has_bucket: bool = False
    """The receiver's store is in a bucket."""
    is_from_bucket: bool = False
    """The sender's store is in a bucket, which serves its objects itself."""


PULLS: Final = {
    "pull, the client": Way(act="pull", scheme="http"),
    "pull of an update, the client": Way(act="pull", scheme="http", is_update=True),
    "pull, the server": Way(act="pull", scheme="http", kills_server=True),
    "smart pull, the client": Way(act="pull", scheme="odf+http"),
    "smart pull, the server": Way(act="pull", scheme="odf+http", kills_server=True),
    "pull from a bucket": Way(act="pull", scheme="s3"),
    "pull from a node with a bucket, the client": Way(act="pull", scheme="odf+http", is_from_bucket=True),
    "pull from a node with a bucket, the server": Way(
        act="pull", scheme="odf+http", kills_server=True, is_from_bucket=True
    ),
    "pull into a bucket": Way(act="pull", scheme="odf+http", has_bucket=True),
}
PUSHES: Final = {
    "push, the client": Way(act="push", scheme="odf+http"),
    "push, the server": Way(act="push", scheme="odf+http", kills_server=True),
    "push of an update, the server": Way(act="push", scheme="odf+http", kills_server=True, is_update=True),
    "push to a bucket": Way(act="push", scheme="s3"),
    "push to a node with a bucket": Way(act="push", scheme="odf+http", kills_server=True, has_bucket=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Both ends of a transfer, as the settings of a node; the place is the bucket between them, if there is one."""

    act: str
    sender: Mapping[str, str]
    receiver: Mapping[str, str]
    bucket: S3Location

    def command(self, place: str) -> Command:
        settings = self.receiver if self.act == "pull" else self.sender
        return Command(act=self.act, settings=settings, place=place)

    @property
    def serving(self) -> Command:
        return Command(act="serve", settings=self.sender if self.act == "pull" else self.receiver)


@dataclass(slots=True, kw_only=True)
class World:
    """A dataset that is transferred repeatedly."""

    folder: Path
    killable: Killable
    minio: MinioServer
    source: Path
    older: Path
    heads: Mapping[Path, Multihash | None]
    shared: S3Location
    """A bucket with the dataset."""

    @property
    def in_bucket(self) -> dict[str, str]:
        """The settings of a node that keeps its copy of the dataset in a bucket."""
        store = {"ODF_STORE": f"s3://{self.shared.bucket}/node", "ODF_S3_DIRECT_DOWNLOADS": "1"}
        return self.settings(self.folder / "in-bucket") | store

    def ends(self, way: Way, name: str) -> Ends:
        """Return two ends as they are before a transfer."""
        sender, receiver = self.source, self.folder / f"receiver-{name}"
        if way.act == "push":
            sender = self.folder / f"sender-{name}"
            shutil.copytree(self.source, sender)
        if way.is_update:
            shutil.copytree(self.older, receiver)
        bucket = self.shared if (way.act, way.scheme) == ("pull", "s3") else self.minio.new_bucket("team")
        store = {"ODF_STORE": f"s3://{bucket.bucket}/node"} if way.has_bucket else {}
        return Ends(
            act=way.act,
            sender=self.in_bucket if way.is_from_bucket else self.settings(sender),
            receiver=self.settings(receiver) | store,
            bucket=bucket,
        )

    def settings(self, home: Path) -> dict[str, str]:
        return {
            "ODF_HOME": str(home),
            "ODF_FETCH_NETWORKS": "127.0.0.0/8",
            "ODF_S3_ENDPOINT": self.minio.endpoint,
            "ODF_S3_REGION": "us-east-1",
            "ODF_S3_ACCESS_KEY": ACCESS_KEY,
            "ODF_S3_SECRET_KEY": SECRET_KEY,
        }

    def is_survived(self, way: Way, ends: Ends, steps: int) -> bool:
        """Transfer with a kill after some steps; return whether it ended before."""
        if way.scheme == "s3":
            return self.killable.is_survived(ends.command(str(ends.bucket)), steps=steps)
        if not way.kills_server:
            with ends.serving.node().served() as served:
                return self.killable.is_survived(ends.command(self.place(way, served)), steps=steps)
        survived: list[bool] = []
        with suppress(OdfError), self.killable.serving(ends.serving, steps=steps, survived=survived) as url:
            if url is not None:
                ends.command(self.place(way, url)).run()
        return survived == [True]

    def repeat(self, way: Way, ends: Ends) -> None:
        """Transfer without interruption."""
        if way.scheme == "s3":
            ends.command(str(ends.bucket)).run()
            return
        with ends.serving.node().served() as url:
            ends.command(self.place(way, url)).run()

    @staticmethod
    def place(way: Way, url: str) -> str:
        return f"{url.replace('http', way.scheme, 1)}/cities"

    def visible(self, way: Way, ends: Ends) -> Multihash | None:
        """Return the head that others see of a whole dataset, None if there is no dataset."""
        folder = self.folder / "seen"
        shutil.rmtree(folder, ignore_errors=True)
        if (way.act, way.scheme) == ("push", "s3"):
            return self.read_bucket(ends.bucket, folder)
        node = SyncNode(Path(ends.receiver["ODF_HOME"]))
        entry = node.catalog.by_alias("cities")
        if entry is None:
            return None
        if way.has_bucket:
            place = S3Location(bucket=ends.bucket.bucket, prefix=f"node/{entry.dataset_id.folder}")
            head = self.read_bucket(place, folder)
            assert head is not None
            return head
        return read_chain(node.coordinator.home / "datasets" / entry.dataset_id.folder).head

    def read_bucket(self, place: S3Location, folder: Path) -> Multihash | None:
        for key, content in self.minio.objects(place).items():
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(content)
        return read_chain(folder).head if (folder / "refs" / "head").is_file() else None

    def content(self, way: Way, ends: Ends) -> dict[str, bytes]:
        """Return all objects and blocks that the receiver has, and its head."""
        if (way.act, way.scheme) == ("push", "s3"):
            return dict(self.minio.objects(ends.bucket))
        return content(ends.command("").node() if way.act == "pull" else ends.serving.node())

    def require_survived(self, way: Way, stride: int) -> int:
        """Kill before each `stride`-th step, check the state afterwards, and return how often it was killed."""
        undisturbed = self.ends(way, "undisturbed")
        self.repeat(way, undisturbed)
        expected = self.content(way, undisturbed)
        assert expected == content(SyncNode(self.source))
        files = [files_later(Path(one["ODF_HOME"])) for one in (undisturbed.sender, undisturbed.receiver)]
        before = self.heads[self.older] if way.is_update else None
        kills, steps, is_survived = 0, first_write(stride, way), False
        while not is_survived:
            ends = self.ends(way, str(steps))
            is_survived = self.is_survived(way, ends, steps)
            after = self.heads[self.source]
            assert self.visible(way, ends) in ((after,) if is_survived else (before, after)), f"step {steps}"
            self.repeat(way, ends)
            assert self.content(way, ends) == expected, f"step {steps}"
            for one, whole in zip((ends.sender, ends.receiver), files, strict=True):
                assert files_later(Path(one["ODF_HOME"])) == whole, f"step {steps}"
            self.require_remembered(way, ends)
            for one in (ends.sender, ends.receiver):
                if one["ODF_HOME"] not in {str(self.source), self.in_bucket["ODF_HOME"]}:
                    shutil.rmtree(one["ODF_HOME"], ignore_errors=True)
            steps, kills = steps + stride, kills + (not is_survived)
        return kills

    @staticmethod
    def require_remembered(way: Way, ends: Ends) -> None:
        """The dataset has its alias: its source, or its target."""
        node = ends.command("").node()
        entry = node.catalog.by_alias("cities")
        assert entry is not None
        aliases = remote_aliases(node.blobs, entry.dataset_id)
        assert way.is_update or (aliases.pull if way.act == "pull" else aliases.push)


def content(node: SyncNode) -> dict[str, bytes]:
    found = {f"{kind}/{name}": raw for (kind, name), raw in node.content("cities").items()}
    return found | {"refs/head": str(node.head("cities")).encode()}


def files_later(home: Path) -> set[str]:
    """Return the files of a home after a week without transfers, when the services have cleaned up."""
    past = time.time() - LATER_SECONDS
    for folder in ("downloads", "uploads", "claims", "names"):
        for file in home.glob(f"{folder}/*"):
            os.utime(file, (past, past))
    for file in home.glob("datasets/*/*/.pending-*"):
        os.utime(file, (past, past))
    node = SyncNode(home)
    node.coordinator.now = time.time()
    node.coordinator.collector.collect()
    node.coordinator.collector.sweep()
    sweep(home)
    processes = {one.name.partition("-")[0] for one in node.blobs.scratch().parent.parent.iterdir()}
    assert processes == {str(os.getpid())}
    files = (file.relative_to(home) for file in home.rglob("*") if file.is_file())
    return {str(file) for file in files if file.parts[0] not in OF_PROCESSES}


@pytest.fixture(scope="module")
def process() -> Iterator[Killable]:
    with killable() as process:
        yield process


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def world(process: Killable, minio: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    be_quick(monkeypatch.setattr)
    source, older = tmp_path / "source", tmp_path / "older"
    node = SyncNode(source)
    node.coordinator.add(yaml.safe_dump(ROOT), yaml.safe_dump(CITIES))
    SyncNode(older).pull(
        source.joinpath("datasets", node.coordinator.find("cities").id.folder).as_uri(), "cities"
    )
    node.coordinator.push("source", "Oslo", minute=1)
    node.coordinator.work()
    assert node.content("cities").keys() - SyncNode(older).content("cities").keys()
    world = World(
        folder=tmp_path,
        killable=process,
        minio=minio,
        source=source,
        older=older,
        heads={one: SyncNode(one).head("cities") for one in (source, older)},
        shared=minio.new_bucket("team"),
    )
    pushing = tmp_path / "pushing"
    shutil.copytree(source, pushing)
    Command(act="push", settings=world.settings(pushing), place=str(world.shared)).run()
    Command(act="pull", settings=world.in_bucket, place=str(world.shared)).run()
    return world


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("way", [*PULLS, *PUSHES])
def test_a_transfer_that_is_killed_at_any_step_is_repeated(world: World, way: str, stride: int) -> None:
    kills = world.require_survived((PULLS | PUSHES)[way], stride)
    assert kills >= max(1, 5 // stride)
