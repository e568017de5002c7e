"""Chains that earlier code wrote, their transforms included, replay to the same hashes today.

There is no release yet: `an_earlier_release.tar.gz` has the folders of five datasets that a node of commit c57908e wrote.
Their engine version, 0.1.0+spark4.3.0.5bc3fbb2aaf3, ends with a hash of that commit's sources; today's engine accepts it
and gives the same bytes. They are two roots and their daily join in windows, and a root with the two best of each match.
"""

import tarfile
from pathlib import Path

from odf_testing.chains import read_chain
from odf_testing.story import Story

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
