"""A home that earlier code wrote opens: its datasets are listed, verified by replay, and continued.

There is no release yet: `an_earlier_home.tar.xz` was written by a node of commit c57908e, which its transforms' engine
version 0.1.0+spark4.3.0.5bc3fbb2aaf3 identifies, and then stopped. It shows that names, keys and Kafka's log of
that time are still read: a root of four records with its push topic, and the derivative that counts them by day, whose
last record waits for its window to end.
"""

import json
import tarfile
from pathlib import Path

from odf_testing.embedded import EmbeddedNode

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
