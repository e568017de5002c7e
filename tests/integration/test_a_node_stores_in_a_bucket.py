"""A node whose objects and references are in an S3 bucket has all features of others."""

import io
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.story import Story, derivative, root

from odf_common.adapters.s3.location import S3Location
from odf_common.codec.flatbuffers import decode_block

RECORDS = 30
PARTS = ("coordinator", "ingest", "verifier", "sync")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="module")
def place(server: MinioServer) -> S3Location:
    return server.new_bucket("team")


@pytest.fixture(scope="module")
def node(
    node: EmbeddedNode, server: MinioServer, place: S3Location, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedNode]:
    """A node with its objects in a bucket, written as older implementations do."""
    settings = {
        "ODF_STORE": str(place),
        "ODF_S3_ACCESS_KEY": ACCESS_KEY,
        "ODF_S3_SECRET_KEY": SECRET_KEY,
        "ODF_BLOCK_VERSION": "2",
        "ODF_SIGNED_COLUMNS": "1",
    }
    node = node.guest(tmp_path_factory.mktemp("bucket"), settings)
    node.up(*PARTS)
    yield node
    node.down()


@pytest.fixture
def story(node: EmbeddedNode) -> Story:
    return Story(node)


def some(count: int, start: int = 0) -> list[dict[str, object]]:
    return [{"id": number, "value": number % 7} for number in range(start, start + count)]


def total_of(node: EmbeddedNode, dataset: str) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = node.run(
        f"sql -c 'SELECT count(*) AS n, sum(value) AS total FROM `{dataset}`' --output json"
    )
    return rows


def folders(server: MinioServer, place: S3Location) -> set[str]:
    return {"/".join(key.split("/")[1:2]) for key in server.objects(place)}


def objects_of(server: MinioServer, place: S3Location, folder: str) -> list[bytes]:
    return [content for key, content in server.objects(place).items() if key.split("/")[1] == folder]


def test_records_are_kept_derived_queried_and_verified(
    server: MinioServer, place: S3Location, node: EmbeddedNode, story: Story
) -> None:
    story.add(
        root("s3.numbers", ["id BIGINT", "value BIGINT"]),
        derivative(
            "s3.large", {"numbers": "s3.numbers"}, "SELECT event_time, id, value FROM numbers WHERE value > 3"
        ),
    )
    for start in range(0, RECORDS, 10):
        story.ingest("s3.numbers", some(10, start))
    story.pull("s3.large")
    large = [row["value"] for row in some(RECORDS) if int(str(row["value"])) > 3]
    assert story.records("s3.numbers", "s3.large") == [RECORDS, len(large)]
    assert total_of(node, "s3.large") == [{"n": len(large), "total": sum(map(int, map(str, large)))}]
    assert {row["verdict"] for row in story.verify("s3.numbers s3.large")} == {"valid"}
    assert folders(server, place) == {"blocks", "checkpoints", "data", "refs"}
    assert {decode_block(raw).version for raw in objects_of(server, place, "blocks")} == {2}
    slices = [pq.read_schema(io.BytesIO(raw)) for raw in objects_of(server, place, "data")]
    assert (pa.int64(), pa.int32()) in {
        (schema.field("offset").type, schema.field("op").type) for schema in slices
    }
    assert {path.name for path in node.home.glob("datasets/*/*")} == {"info", "notes"}


def test_parts_that_restart_without_copies_read_everything_from_the_bucket(
    node: EmbeddedNode, story: Story
) -> None:
    before = story.tail("s3.numbers"), story.tail("s3.large")
    killed = {part: node.kill(part) for part in ("coordinator", "verifier", "redis")}
    shutil.rmtree(node.home / "cache")
    for part, pid in killed.items():
        node.await_restart(part, pid)
    assert (story.tail("s3.numbers"), story.tail("s3.large")) == before
    assert {row["verdict"] for row in story.verify("s3.numbers s3.large")} == {"valid"}


def test_a_lost_server_is_named_and_nothing_is_lost_with_it(
    server: MinioServer, node: EmbeddedNode, story: Story
) -> None:
    server.stop()
    said = node.fails("ingest s3.numbers -", stdin=b'{"id": 100, "value": 1}')
    assert "the S3 server cannot be reached (Connection refused)" in said
    assert SECRET_KEY not in said
    problems = [row["problem"] for row in node.run("list --output json")]
    assert all("the S3 server cannot be reached" in problem for problem in problems)
    server.start()
    story.ingest("s3.numbers", [{"id": 101, "value": 1}])
    ids = [row["id"] for row in story.tail("s3.numbers")]
    assert ids[-1] == 101
    assert len(set(ids)) == len(ids)


def test_a_dataset_is_pulled_from_another_prefix_of_the_bucket(
    server: MinioServer, place: S3Location, node: EmbeddedNode, story: Story
) -> None:
    there = replace(place, prefix="shared/numbers")
    (folder,) = {path.parent.name for path in node.home.glob("datasets/*/info")} - {
        story.folder("s3.large").name
    }
    for key, content in server.objects(replace(place, prefix=f"{place.prefix}/{folder}")).items():
        server.bucket(there).put(key, content)
    said = node.fails(f"pull {there} --as s3.copy")
    assert "s3.numbers" in said  # this node has the dataset already
    assert node.run(f"compare s3.numbers {there} --output json")["relation"] == "equal"


def test_a_deleted_dataset_leaves_nothing_in_the_bucket(
    server: MinioServer, place: S3Location, node: EmbeddedNode
) -> None:
    node.run("delete s3.large s3.numbers --yes")
    assert server.objects(place) == {}
    assert list(node.home.glob("datasets/fed01*")) == []
    assert list(node.home.glob("cache/fed01*")) == []
