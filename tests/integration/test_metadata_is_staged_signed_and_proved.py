"""Metadata of a dataset: staged at a reference, verified, followed by the head, signed, and proved."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.chains import flip
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Story, root

COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
INFO = b"kind: SetInfo\ndescription: readings\n"


@pytest.fixture(scope="module")
def signing(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Another node, which signs its blocks."""
    made = node.guest(tmp_path_factory.mktemp("signing"), {"ODF_SIGN_BLOCKS": "1"})
    made.up("coordinator", "sync", "verifier")
    yield Story(made)
    made.down()


def added(story: Story, name: str, count: int = 3) -> str:
    story.add(root(name, COLUMNS, event_time="at"))
    story.ingest(name, [{"id": id_, "at": f"2026-01-01T00:00:{id_:02}Z"} for id_ in range(count)])
    return name


def test_an_event_is_staged_verified_and_followed_by_the_head(story: Story) -> None:
    name = added(story, "staged.info")
    odf = story.node.run
    head = story.summary(name)["head"]
    odf(f"ref set {name}@next --expected none")
    odf(f"commit {name}@next -", stdin=INFO)
    assert story.summary(name)["head"] == head
    assert [row["event"]["kind"] for row in odf(f"log {name}@next --limit 1 -o json")] == ["SetInfo"]
    first, second = odf(f"ref list {name} -o json")
    assert (first["name"], first["block"], first["relation"]) == ("head", head, "equal")
    assert (second["name"], second["relation"], second["ahead"]) == ("next", "ahead", 1)

    (verdict,) = odf(f"verify {name}@next -o json")
    assert (verdict["dataset"], verdict["verdict"]) == (f"{name}@next", "valid")
    assert odf(f"compare {name} {name}@next -o json", code=4)["relation"] == "behind"
    assert odf(f"ref fast-forward {name}@next -o json")["head"] == second["block"]
    assert odf(f"compare {name} {name}@next -o json")["relation"] == "equal"
    odf(f"ref delete {name}@next")
    assert "reference next" in story.node.fails(f"log {name}@next")


def test_damage_in_a_staged_block_is_found_only_at_its_reference(story: Story) -> None:
    name = added(story, "staged.damage")
    odf = story.node.run
    odf(f"ref set {name}@next")
    odf(f"commit {name}@next -", stdin=INFO)
    block = odf(f"ref list {name} -o json")[1]["block"]
    flip(story.folder(name) / "blocks" / block)

    assert odf(f"verify {name} -o json")[0]["verdict"] == "valid"
    (verdict,) = odf(f"verify {name}@next -o json", code=3)
    assert verdict["problems"][0]["block"] == block
    odf(f"ref delete {name}@next")
    assert [row["name"] for row in odf(f"ref list {name} -o json")] == ["head"]


def test_a_diverged_chain_of_another_node_is_staged_next_to_the_head(
    story: Story, signing: Story, tmp_path: Path
) -> None:
    name = added(story, "staged.elsewhere")
    url = f"{story.node.node.http}/{name}"
    pulled = signing.pull(url)[name]
    odf = story.node.run
    odf(f"commit {name} -", stdin=INFO)
    assert signing.node.run(f"compare {name} {url} -o json", code=4)["relation"] == "behind"

    staged = signing.node.run(f"pull {url} --as {name}@theirs -o json")
    assert [row["state"] for row in staged] == ["updated"]
    assert signing.summary(name)["head"] == pulled["head"]
    assert signing.node.run(f"verify {name}@theirs -o json")[0]["verdict"] == "valid"
    assert signing.node.run(f"compare {name}@theirs {url} -o json")["relation"] == "equal"

    # The owner rolls the block back and commits another one.
    odf(f"reset {name} {pulled['head']} --yes")
    odf(f"commit {name} -", stdin=INFO.replace(b"readings", b"other readings"))
    signing.node.run(f"ref fast-forward {name}@theirs")
    assert "NAME@REF" in signing.node.fails(f"pull {url} --as {name}")
    diverged = signing.node.run(f"compare {name} {url} -o json", code=4)
    assert (diverged["relation"], diverged["only_left"], diverged["only_right"]) == ("diverged", 1, 1)
    assert diverged["common"] == pulled["head"]
    signing.node.run(f"pull {url} --as {name}@theirs")
    signing.node.run(f"reset {name} {pulled['head']} --yes")
    head = signing.node.run(f"ref fast-forward {name}@theirs -o json")["head"]
    assert head == story.summary(name)["head"]


def test_only_its_owner_commits_to_a_dataset_and_proves_ownership(story: Story, signing: Story) -> None:
    name = added(story, "owned.here")
    identity = story.summary(name)["id"]
    signing.pull(f"{story.node.node.http}/{name}")
    assert "only the node that has the dataset's private key can commit" in signing.node.fails(
        f"commit {name} -", stdin=INFO
    )

    proof = story.node.run(f"prove {name} 'of today' -o json")
    assert proof["dataset"] == identity
    check = f"prove {identity} 'of today' --check {proof['signature']} -o json"
    assert signing.node.run(check)["proof"] == "valid"
    assert signing.node.run(check.replace("of today", "of tomorrow"), code=3)["proof"] == "invalid"
    assert "key" in signing.node.fails(f"prove {name} 'of today'")


def test_blocks_are_signed_also_in_a_copy_and_a_signature_of_another_is_found(
    story: Story, signing: Story
) -> None:
    name = "signed.readings"
    signing.add(root(name, COLUMNS, event_time="at"))
    signing.node.run(f"commit {name} -", stdin=INFO)
    rows = signing.node.run(f"log {name} --signatures -o json")
    assert {row["signature"] for row in rows} == {"valid"}
    assert len({row["signer"] for row in rows}) == 1
    assert signing.node.run(f"verify {name} -o json")[0]["verdict"] == "valid"

    story.pull(f"{signing.node.node.http}/{name}")
    assert story.node.run(f"log {name} --signatures -o json") == rows
    story.node.run(f"delete {name} --yes")  # its source ends with this file, and others pull all

    signatures = sorted((signing.folder(name) / "signatures").iterdir())
    signatures[0].write_bytes(signatures[1].read_bytes())
    (verdict,) = signing.node.run(f"verify {name} -o json", code=3)
    assert verdict["problems"][0]["block"] == signatures[0].name
