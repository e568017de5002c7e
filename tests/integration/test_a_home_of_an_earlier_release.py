import json
import tarfile
from pathlib import Path

from odf_testing.chains import read_chain
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Story

HOME = Path(__file__).with_name("an_earlier_home.tar.xz")


def test_it_is_listed_and_verified_and_continues(node: EmbeddedNode, tmp_path: Path) -> None:
    with tarfile.open(HOME) as archive:
        archive.extractall(tmp_path, filter="data")
    earlier = EmbeddedNode(tmp_path / "home", node.lent_engine)  # it keeps nothing in a home
    try:
        # The ports of that time may be in use here.
        earlier.up("--new-ports", "coordinator", "ingest", "verifier", "sync")
        listed = {one["alias"]: one["records"] for one in earlier.run("list --output json")}
        assert listed == {"cities": 4, "cities.daily": 2}
        verified = {
            one["dataset"]: (one["verdict"], one["transforms"])
            for one in earlier.run("verify --all --output json")
        }
        assert verified == {"cities": ("valid", 0), "cities.daily": ("valid", 2)}

        # That node's Kafka had no users: its topics are still there, and its clients authenticate now.
        assert {"odf.push.cities.default", "odf.sync.replies.v1"} <= set(earlier.topics().list_names())

        record = {"event_time": "2026-01-05T00:00:00Z", "city": "Accra", "population": 2_514_000}
        earlier.run("ingest cities -", stdin=json.dumps(record).encode())
        earlier.run("pull cities.daily")
        assert [row["cities"] for row in earlier.run("tail cities.daily --output json")] == [2, 1, 1]
        assert {one["verdict"] for one in earlier.run("verify --all --output json")} == {"valid"}
    finally:
        earlier.down()


FOLDERS = Path(__file__).with_name("an_earlier_release.tar.gz")
# Records and transforms, inputs first.
WRITTEN = {
    "orders": (120, 0),
    "shipments": (95, 0),
    "orders.daily": (16, 3),
    "match.scores": (6, 0),
    "leaderboard": (8, 1),
}


def test_they_are_pulled_and_replay_to_the_same(story: Story, tmp_path: Path) -> None:
    with tarfile.open(FOLDERS) as archive:
        archive.extractall(tmp_path, filter="data")
    names = {name: f"earlier.{name}" for name in WRITTEN}
    for name, copy in names.items():
        story.node.run(f"pull file://{tmp_path / name} --as {copy}")
        assert story.chain(copy).table == read_chain(tmp_path / name).table
    verdicts = {one["dataset"]: one for one in story.verify(" ".join(names.values()))}
    assert {
        name: (story.records(copy)[0], verdicts[copy]["transforms"]) for name, copy in names.items()
    } == WRITTEN
    assert {(one["verdict"], *one["problems"]) for one in verdicts.values()} == {("valid",)}
