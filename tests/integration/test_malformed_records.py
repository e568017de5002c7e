import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Row, Sender, Story, ledger, root

from odf_common.ports.bus import DEAD_LETTERS

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
    """A valid record."""
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


def test_malformed_records_alone_advance_the_position(story: Story) -> None:
    name = "malformed.only"
    story.add(root(name, COLUMNS, event_time="at"))
    Sender(story.node).send(story.topic(name), [b"nonsense", b"more nonsense"])
    story.pull(name)
    assert story.records(name) == [0]
    Sender(story.node).send(story.topic(name), [good(1)])
    story.pull(name)
    assert story.chain(name).column("id") == [1]
    assert_letters(story, name, {0: b"nonsense", 1: b"more nonsense"})


def test_a_pushed_file_of_a_source_that_stops_is_refused_with_the_place(story: Story) -> None:
    name = "malformed.file"
    story.add(root(name, COLUMNS, merge=ledger("id"), event_time="at"))
    story.node.run(f"source set {name} badRecords=stop")
    said = story.node.fails(
        f"ingest {name} -", stdin=b"\n".join([good(1), BAD["a wrong type"] or b"", good(2)])
    )
    assert "line 2" in said
    assert "'seven'" in said
    assert story.records(name) == [0]
    assert story.ingest(name, [good(1), good(2)])["records"] == 2


def test_rejected_messages_are_counted_everywhere_until_they_are_retried_or_dropped(story: Story) -> None:
    name = "malformed.counted"
    story.add(root(name, COLUMNS, merge=ledger("id"), event_time="at"))
    # A nullable integer as pandas writes it, once something was averaged.
    bad = good(7).replace(b"7,", b"1039.5,", 1)
    Sender(story.node).send(story.topic(name), [good(1), bad, bad, good(2)])

    (pulled,) = story.pull(name).values()
    assert pulled["rejected"] == 2
    assert "1039.5" in pulled["rejectedReason"]
    listed = story.summary(name)
    assert (listed["rejected"], listed["rejectedReason"]) == (2, pulled["rejectedReason"])
    (status,) = story.node.run(f"status {name} --output json")
    assert (status["rejected"], status["rejected_reason"]) == (2, pulled["rejectedReason"])
    story.node.eventually(lambda: viewed(story, name)["rejected"] == 2)

    rows = story.node.run(f"rejected list {name} --output json")
    assert [(row["location"], row["value"]) for row in rows] == [("0/1", bad.decode()), ("0/2", bad.decode())]
    assert bad.decode() in story.node.run(f"rejected show {name} 0/1")
    assert "0/0" in story.node.fails(f"rejected show {name} 0/0")

    # Retried, it is a new message, which is rejected again.
    assert story.node.run(f"rejected retry {name} 0/1 --output json") == {
        "dataset": name, "retried": 1, "rejectedAgain": 1, "open": 2,
    }  # fmt: skip
    assert story.summary(name)["rejected"] == 2
    rows = story.node.run(f"rejected list {name} --output json")
    assert [row["location"] for row in rows] == ["0/2", "0/4"]

    assert story.node.run(f"rejected drop {name} --all --output json") == {
        "dataset": name, "dropped": 2, "open": 0,
    }  # fmt: skip
    assert story.summary(name)["rejected"] == 0
    story.node.eventually(lambda: viewed(story, name)["rejected"] == 0)
    assert story.node.run(f"rejected list {name} --output json") == []
    assert story.chain(name).column("id") == [1, 2]


def test_a_source_may_stop_at_a_bad_message_until_it_is_skipped(story: Story) -> None:
    name = "malformed.stops"
    story.add(root(name, COLUMNS, merge=ledger("id"), event_time="at"))
    story.node.run(f"source set {name} badRecords=stop")
    Sender(story.node).send(story.topic(name), [good(1), b"nonsense", good(2)])
    said = story.node.fails(f"pull {name}")
    assert "expected one JSON object" in said
    assert (story.records(name), story.summary(name)["rejected"]) == ([1], 0)
    story.node.run(f"source skip {name}")
    assert story.pull(name)[name]["rejected"] == 1
    assert story.chain(name).column("id") == [1, 2]
    (row,) = story.node.run(f"rejected list {name} --output json")
    assert row["location"] == "0/1"
    assert row["reason"].startswith("skipped by command: ")


def test_a_bad_message_larger_than_a_dead_letter_may_be_stops_nothing(story: Story) -> None:
    name = "malformed.large"
    story.add(root(name, COLUMNS, merge=ledger("id"), event_time="at"))
    large = b"x" * 300_000
    with limited(story.node.clients, DEAD_LETTERS, "3000"):
        Sender(story.node).send(story.topic(name), [good(1), large, *[b"small"] * 200, b"", good(2)])
        assert story.pull(name)[name]["rejected"] == 202
    rows = story.node.run(f"rejected list {name} --output json --limit 0")
    (cut,) = [row for row in rows if row["isCut"]]
    assert (len(rows), cut["location"], cut["size"], cut["value"]) == (202, "0/1", 300_000, "x" * 1024)
    assert story.chain(name).column("id") == [1, 2]
    assert story.node.run(f"rejected retry {name} 0/1 --output json")["open"] == 202
    assert story.node.run(f"rejected drop {name} 0/1 --output json")["open"] == 201


def test_the_outcome_of_each_of_several_files_is_reported(story: Story, tmp_path: Path) -> None:
    name = "malformed.files"
    story.add(root(name, COLUMNS, merge=ledger("id"), event_time="at"))
    files = [tmp_path / kind for kind in ("first", "bad", "last")]
    for file, content in zip(files, (good(1), b"nonsense", good(2)), strict=True):
        file.write_bytes(content)
    line = f"ingest {name} {' '.join(map(str, files))} --idempotency-key k"
    rows = story.node.run(f"{line} --output json", code=1)
    assert [(row["file"], row["outcome"], row["records"]) for row in rows] == [
        (str(files[0]), "committed", 1),
        (str(files[1]), "refused", None),
        (str(files[2]), "not attempted", None),
    ]
    said = story.node.fails(line)
    assert f"error: {files[1]}: line 1: " in said
    files[1].write_bytes(good(3))
    rows = story.node.run(f"{line} --output json")
    assert [row["outcome"] for row in rows] == ["already", "committed", "committed"]
    assert story.chain(name).column("id") == [1, 3, 2]


def test_ctrl_c_while_a_file_is_ingested_waits_for_its_outcome(story: Story, tmp_path: Path) -> None:
    name = "malformed.interrupted"
    story.add(root(name, COLUMNS, event_time="at"))
    file = tmp_path / "large"
    file.write_bytes(b"".join(good(number) + b"\n" for number in range(86_400)) * 10)
    command = story.node.start(f"ingest {name} {file} --output json")
    story.node.eventually(story.is_handed_over)
    command.send_signal(signal.SIGINT)
    out, said = command.communicate(timeout=120)
    (row,) = json.loads(out)
    assert b"aborted" not in said
    records = story.records(name)[0]
    # On a busy machine the file may be committed, and the command at its end, before the signal arrives.
    ends = {(130, "cancelled", 0), (130, "committed", 864_000), (0, "committed", 864_000)}
    assert (command.returncode, row["outcome"], records) in ends, (row, said)
    time.sleep(1)
    assert story.records(name)[0] == records


def viewed(story: Story, dataset: str) -> Row:
    """Return a dataset as the views show it."""
    with urlopen(f"{story.node.node.views}/datasets") as answer:
        rows = {row["alias"]: row for row in json.load(answer)}
    return dict(rows[dataset])


@contextmanager
def limited(clients: Mapping[str, str], topic: str, most: str) -> Iterator[None]:
    """Have the broker accept only messages of up to this number of bytes in a topic while the block runs."""
    admin = AdminClient(dict(clients))
    before = describe(admin, topic)
    alter(admin, topic, most)
    try:
        yield
    finally:
        alter(admin, topic, before)


def describe(admin: AdminClient, topic: str) -> str:
    """Return how many bytes a message of a topic may have."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (answer,) = admin.describe_configs([resource]).values()
    return str(answer.result()["max.message.bytes"].value)


def alter(admin: AdminClient, topic: str, most: str) -> None:
    """Set how many bytes a message of a topic may have."""
    entry = ConfigEntry("max.message.bytes", most, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    (answer,) = admin.incremental_alter_configs([resource]).values()
    answer.result()


def assert_letters(story: Story, dataset: str, bad: dict[int, bytes | None]) -> None:
    """Each bad message has one dead letter, or more if it was read again; each has its place and the reason."""
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
