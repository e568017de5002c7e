import json

import pytest

from odf_common.testing.embedded import EmbeddedNode
from odf_common.testing.manifests import ledger, root
from odf_common.testing.story import Row, Sender, Story

COLUMNS = ("id BIGINT", "name STRING", "at TIMESTAMP(3)")
BAD = {
    "bad JSON": b'{"id": 1, "name": ',
    "no JSON at all": b"id=1",
    "a wrong type": b'{"id": "seven", "name": "x", "at": "2026-01-01T00:00:00Z"}',
    "a wrong time": b'{"id": 7, "name": "x", "at": "yesterday"}',
    "a tombstone": None,
    "an empty message": b"",
    "two objects": b'{"id": 1, "name": "x", "at": "2026-01-01T00:00:00Z"}\n{"id": 2, "name": "y", "at": "2026-01-01T00:00:00Z"}',
    "two objects in a line": b'{"id": 1, "name": "x", "at": null} {"id": 2, "name": "y", "at": null}',
    "an array": b'[{"id": 1}]',
    "invalid UTF-8": b'{"id": 1, "name": "\xff\xfe", "at": "2026-01-01T00:00:00Z"}',
    "a null key": b'{"id": null, "name": "x", "at": "2026-01-01T00:00:00Z"}',
    "a missing key": b'{"name": "x", "at": "2026-01-01T00:00:00Z"}',
}


def good(id_: int) -> bytes:
    """A record as it should be."""
    at = f"2026-01-01T{id_ // 3600:02}:{id_ // 60 % 60:02}:{id_ % 60:02}Z"
    return json.dumps({"id": id_, "name": f"nr {id_}", "at": at}).encode()


@pytest.fixture(scope="module")
def malformed(node: EmbeddedNode) -> dict[str, str]:
    """A dataset for each kind, which was sent good records and twice a bad one."""
    story = Story(node)
    names = {kind: "malformed." + kind.lower().replace(" ", "-") for kind in BAD}
    story.add(*(root(name, COLUMNS, merge=ledger("id"), event_time="at") for name in names.values()))
    for kind, name in names.items():
        Sender(story.node).send(
            story.topic(name), [good(10), good(11), BAD[kind], good(12), BAD[kind], good(13)]
        )
    story.pull(" ".join(names.values()))
    return names


@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_record_does_not_stop_its_neighbours(
    story: Story, malformed: dict[str, str], kind: str
) -> None:
    name = malformed[kind]
    assert story.chain(name).column("id") == [10, 11, 12, 13]
    assert_letters(story, name, {2: BAD[kind], 4: BAD[kind]})


def test_many_malformed_records_of_all_kinds_among_many_good_ones(story: Story) -> None:
    name = "malformed.many"
    story.add(root(name, COLUMNS, merge=ledger("id"), event_time="at"))
    messages: list[bytes | None] = []
    kinds = list(BAD.values())
    for id_ in range(3000):
        messages.append(good(id_))
        if id_ % 50 == 0:
            messages.append(kinds[id_ // 50 % len(kinds)])
    Sender(story.node).send(story.topic(name), messages)
    story.pull(name)
    assert story.chain(name).column("id") == list(range(3000))
    bad = {place: one for place, one in enumerate(messages) if one is None or one in kinds}
    assert_letters(story, name, bad)


def test_nothing_but_malformed_records_moves_the_position_on(story: Story) -> None:
    name = "malformed.only"
    story.add(root(name, COLUMNS, event_time="at"))
    Sender(story.node).send(story.topic(name), [b"nonsense", b"more nonsense"])
    story.pull(name)
    assert story.records(name) == [0]
    Sender(story.node).send(story.topic(name), [good(1)])
    story.pull(name)
    assert story.chain(name).column("id") == [1]
    assert_letters(story, name, {0: b"nonsense", 1: b"more nonsense"})


def test_a_pushed_file_with_a_malformed_record_is_refused_whole_and_says_where(story: Story) -> None:
    name = "malformed.file"
    story.add(root(name, COLUMNS, merge=ledger("id"), event_time="at"))
    said = story.node.fails(
        f"ingest {name} -", stdin=b"\n".join([good(1), BAD["a wrong type"] or b"", good(2)])
    )
    assert "seven" in said or "id" in said
    assert story.records(name) == [0]
    assert story.ingest(name, [good(1), good(2)])["records"] == 2


def assert_letters(story: Story, dataset: str, bad: dict[int, bytes | None]) -> None:
    """Each bad message has one dead letter, or more if it was read again; each tells where it lay and why."""
    topic = story.topic(dataset)
    letters: dict[int, Row] = {}
    for letter in story.dead_letters(topic):
        letters[int(letter["offset"])] = letter
    assert set(letters) == set(bad)
    for offset, message in bad.items():
        letter = letters[offset]
        assert (letter["topic"], letter["partition"]) == (topic, "0")
        assert len(letter["reason"]) > 5
        assert letter["value"] == (message or b"").decode(errors="replace")
