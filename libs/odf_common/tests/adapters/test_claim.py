"""Who owns topics: the earliest claim, until another one replaces it by name."""

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from odf_common.adapters.kafka.topic_claims import TopicClaim, TopicsTaken, owner_of
from odf_common.service.node_home import HomeCopied, node_id, require_original

FIRST = TopicClaim(node_id="a", home="/a/.odf", host="one", at="2026-01-01T00:00:00Z")
SECOND = TopicClaim(node_id="b", home="/b/.odf", host="two", at="2026-01-02T00:00:00Z")


def test_the_earliest_claim_wins_and_a_repeat_changes_nothing() -> None:
    assert owner_of([]) is None
    assert owner_of([FIRST, SECOND, FIRST]) == FIRST


def test_of_two_that_take_over_at_once_the_first_wins() -> None:
    third = replace(SECOND, node_id="c", replaces="a")
    assert owner_of([FIRST, replace(SECOND, replaces="a"), third]) == replace(SECOND, replaces="a")
    assert owner_of([FIRST, replace(SECOND, replaces="z")]) == FIRST


def test_records_are_json_and_others_are_skipped() -> None:
    assert TopicClaim.decode(FIRST.encode()) == FIRST
    assert b'"nodeId": "a"' in FIRST.encode()
    for value in (b"", b"{", b"[]", b"null", b'{"nodeId": 1}', b"\xff"):
        assert TopicClaim.decode(value) is None


def test_the_error_names_the_first_node_and_has_advice() -> None:
    error = TopicsTaken(kafka="k:9092", prefix="", owner=FIRST)
    assert "home /a/.odf on host one, since 2026-01-01T00:00:00Z" in str(error)
    assert "ODF_KAFKA_PREFIX" in error.advice()
    assert "--take-over" in error.advice()


def test_a_home_has_one_permanent_id(tmp_path: Path) -> None:
    first = node_id(tmp_path)
    assert len(first) == 32
    assert node_id(tmp_path) == first
    assert [file.name for file in tmp_path.iterdir()] == ["node-id"]


def test_a_copied_home_is_distinguished_from_its_original_and_a_moved_one_is_fine(tmp_path: Path) -> None:
    home, copy, link = tmp_path / "home", tmp_path / "copy", tmp_path / "link"
    home.mkdir()
    owner = replace(FIRST, node_id=node_id(home), home=str(home), host=socket.gethostname())
    shutil.copytree(home, copy)
    link.symlink_to(home)
    with pytest.raises(HomeCopied, match=f"the home {copy} is a copy of {home}") as caught:
        require_original(copy, owner)
    assert "ODF_KAFKA_PREFIX" in caught.value.advice()
    require_original(home, owner)
    require_original(link, owner)
    require_original(copy, replace(owner, host="another"))
    shutil.rmtree(home)
    require_original(copy, owner)
