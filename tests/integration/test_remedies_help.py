"""Each remedy helps: a problem is provoked, the command that its message names is run as it stands, and it is gone.

`tests/docs/test_remedies.py` knows which message is followed where.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from odf_testing.embedded import EmbeddedNode
from odf_testing.small_disk import leave_free, small_disk
from odf_testing.story import Manifest, Row, Story, derivative, root

from odf_cli.embedded.doctor_checks import ADVISED_FREE_BYTES
from odf_common.ports.bus import DEAD_LETTERS

COMMAND: Final = re.compile(r"`odf ([^`]+)`")
COLUMNS: Final = ("event_time TIMESTAMP(3)", "id BIGINT", "city STRING", "quantity BIGINT")
MIB: Final = 1 << 20  # bytes
BORROWING: Final = ("ingest", "coordinator", "verifier", "sync")  # all but the engine
HOURLY: Final = (
    "SELECT window.start AS event_time, count(*) AS n FROM input GROUP BY window(event_time, '1 hour')"
)


@pytest.fixture(scope="module")
def guest(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Another node, to which datasets are copied, and whose topics no other test reads."""
    guest = node.guest(tmp_path_factory.mktemp("guest"), {"ODF_FETCH_NETWORKS": "127.0.0.0/8"})
    guest.up(*BORROWING)
    yield Story(guest)
    guest.down()


@pytest.fixture
def crowded(node: EmbeddedNode, tmp_path: Path) -> Iterator[Story]:
    """Another node, whose home is a file system of its own, as large as `odf doctor` advises."""
    guest = node.guest(tmp_path / "crowded")
    with small_disk(guest.home, size=str(2 * ADVISED_FREE_BYTES)):
        guest.up(*BORROWING)
        try:
            yield Story(guest)
        finally:
            guest.down()


def sale(at: str, number: int, quantity: int | str = 1, **more: object) -> Row:
    row = {"event_time": f"2026-03-01T{at}:00Z", "id": number, "city": "Oslo", "quantity": quantity}
    return {**row, **more}


def commands(text: str) -> list[str]:
    """Return the commands that a message names, without the name of the program."""
    return COMMAND.findall(text)


def follow(story: Story, text: str, begins: str, **values: object) -> Any:
    """Run the command of a message that begins with these words, and confirm it; `values` replace words in capitals."""
    (line,) = {line for line in commands(text) if line.startswith(begins)}
    for name, value in values.items():
        line = re.sub(rf"\b{name}\b", str(value), line)
    assert not re.search(r"\b[A-Z]{3,}\b", line), f"`{line}` leaves a word open"
    return story.node.run(line, stdin=b"y\n")


def status(story: Story, dataset: str) -> Row:
    (row,) = story.node.run(f"status {dataset} --output json")
    return dict(row)


def problem_of(story: Story, dataset: str) -> str:
    """Return a dataset's problem with its remedy; empty without one."""
    row = status(story, dataset)
    return f"{row['problem']}; {row['remedy']}" if row["problem"] else ""


def problem_once(story: Story, dataset: str) -> str:
    """Return a dataset's problem with its remedy, once it has one."""
    story.node.eventually(lambda: problem_of(story, dataset) != "")
    return problem_of(story, dataset)


def source_of(story: Story, dataset: str) -> Row:
    (row,) = story.node.run(f"source show {dataset} --output json")
    return dict(row)


def file_of(folder: Path, manifest: Mapping[str, Any]) -> Path:
    file = folder / "definition.yaml"
    file.write_text(json.dumps(manifest))
    return file


def ratio(name: str, sales: str, divide: str) -> Manifest:
    return derivative(name, {"input": sales}, f"SELECT event_time, id, {divide} AS x FROM input")


def test_a_query_that_fails_on_a_record_continues_with_the_one_that_the_remedy_proposes(
    story: Story, tmp_path: Path
) -> None:
    sales, each, sums = "remedy.sales", "remedy.each", "remedy.sums"
    story.add(root(sales, COLUMNS), ratio(each, sales, "10 / quantity"))
    grouped = "SELECT max(event_time) AS event_time, city, sum({} / quantity) AS x FROM input GROUP BY city"
    story.add(derivative(sums, {"input": sales}, grouped.format(10)))
    story.ingest(sales, [sale("10:00", 1, 5)])
    story.pull(f"{each} {sums}")
    story.ingest(sales, [sale("10:01", 2, 2)])
    story.ingest(sales, [sale("10:02", 3, 4), sale("10:03", 4, 0), sale("10:04", 5, 1)])

    said = story.node.fails(f"pull {each}")
    assert "[DIVIDE_BY_ZERO]" in said
    assert f"the record of {sales} at offset 3" in said
    assert [row["x"] for row in story.tail(each)] == [2.0, 5.0], "the blocks before it are derived"
    assert "try_divide" in said
    follow(
        story, said, "add --replace", FILE=file_of(tmp_path, ratio(each, sales, "try_divide(10, quantity)"))
    )
    story.pull(each)
    assert [row["x"] for row in story.tail(each)] == [2.0, 5.0, 2.5, None, 10.0]
    assert problem_of(story, each) == ""

    far = "CASE quantity WHEN 0 THEN timestampadd(YEAR, 9000, event_time) END"
    story.add(ratio("remedy.far", sales, far))
    said = story.node.fails("pull remedy.far")
    assert said.count("offset 3") == 1
    assert "change the query: make it NULL by CASE, or leave the record out by WHERE" in said
    query = f"SELECT event_time, id, {far} AS x FROM input WHERE quantity > 0"
    follow(
        story,
        said,
        "add --replace",
        FILE=file_of(tmp_path, derivative("remedy.far", {"input": sales}, query)),
    )
    story.pull("remedy.far")
    assert (len(story.tail("remedy.far")), problem_of(story, "remedy.far")) == (4, "")

    problem = problem_once(story, sums)
    assert f"the record of {sales} at offset 3" in problem
    better = derivative(
        sums, {"input": sales}, grouped.format("10").replace("quantity", "nullif(quantity, 0)")
    )
    refused = story.node.fails(f"add --replace {file_of(tmp_path, better)}")
    assert commands(refused) == [f"reset {sums} 0 --yes"]
    follow(story, problem, "reset")
    follow(story, problem, "add --replace", FILE=file_of(tmp_path, better))
    story.pull(sums)
    assert story.tail(sums)[-1]["x"] == 2.0 + 5.0 + 2.5 + 10.0
    assert problem_of(story, sums) == ""


def test_what_a_derivative_waits_for_comes_by_the_command_that_it_names(story: Story, tmp_path: Path) -> None:
    full, empty, both = "remedy.full", "remedy.empty", "remedy.both"
    cities = tmp_path / "cities.csv"
    polled = {
        "kind": "SetPollingSource",
        "fetch": {"kind": "FilesGlob", "path": str(cities)},
        "read": {"kind": "Csv", "header": True},
        "merge": {"kind": "Append"},
    }
    manifest = root("remedy.polled", ())
    manifest["content"]["metadata"] = [polled]
    union = "SELECT event_time, id FROM input UNION ALL SELECT event_time, CAST(id AS BIGINT) FROM other"
    story.add(root(full, COLUMNS), root(empty, COLUMNS), manifest)
    joined = (
        "SELECT i.event_time, i.id, o.id AS other FROM input i LEFT JOIN other o ON i.id = o.id AND o.event_time "
        "BETWEEN i.event_time AND i.event_time + INTERVAL 1 HOUR"
    )
    story.add(derivative(both, {"input": full, "other": empty}, joined))
    story.add(derivative("remedy.first", {"input": full, "other": "remedy.polled"}, union))
    story.ingest(full, [sale("10:00", 1), sale("12:00", 2)])

    first = story.pull("remedy.first")["remedy.first"]
    assert "first record of remedy.polled" in first["waitsFor"]
    cities.write_text("event_time,id\n2026-03-01T10:00:00Z,7\n")
    follow(story, first["waitsRemedy"], "pull remedy.polled")
    after = story.pull("remedy.first")["remedy.first"]
    assert (after["waitsFor"], story.records("remedy.first")) == (None, [3])

    waits = story.pull(both)[both]
    assert waits["state"] == "waiting"
    follow(story, waits["waitsRemedy"], "source set")
    follow(story, waits["waitsRemedy"], "pull")
    story.node.run(f"pull {full} --set-watermark 2026-03-01T20:00:00Z")
    story.node.run(f"pull {empty} --set-watermark 2026-03-01T20:00:00Z")
    after = story.pull(both)[both]
    assert (after["waitsFor"], story.records(both)) == (None, [2])


def test_a_watermark_in_the_future_goes_back_by_the_commands_of_its_problem(story: Story) -> None:
    clock, hourly, others = "remedy.clock", "remedy.hourly", ("remedy.second", "remedy.third")
    derived = [derivative(name, {"input": clock}, HOURLY) for name in (hourly, *others)]
    story.add(root(clock, COLUMNS), *derived)
    story.node.run(f"source set {clock} maxFuture=none")
    story.publish(clock, [sale("10:00", 1)])
    story.pull(f"{clock} {hourly}")
    story.publish(clock, [{**sale("10:00", 2), "event_time": "2099-01-01T00:00:00Z"}])
    story.pull(f"{clock} {hourly}")
    story.publish(clock, [sale("10:20", 3), sale("11:30", 4)])
    story.pull(f"{clock} {hourly} {' '.join(others)}")

    problem = problem_once(story, clock)
    assert "its watermark is in the future" in problem
    reset = next(line for line in commands(problem) if line.startswith("reset"))
    said = story.node.fails(f"{reset.removesuffix(' --force')} --yes")
    assert "has read past block" in said
    (line,) = [one for one in commands(problem) if one.endswith("maxFuture=1d")]
    story.node.run(line)
    story.node.run(f"{reset} --yes")
    story.node.eventually(lambda: story.records(clock) == [4])
    follow(story, problem_once(story, others[0]), f"pull --reset-derivatives {others[0]}")
    (verdict,) = story.verify(others[1], code=3)
    follow(story, verdict["problems"][0]["text"], f"pull --reset-derivatives {others[1]}")
    assert problem_of(story, hourly), "only what was named has been rolled back"
    follow(story, said, "pull --reset-derivatives")

    assert problem_of(story, clock) == ""
    for name in (hourly, *others):
        story.pull(name)
        assert problem_of(story, name) == ""
        assert [row["n"] for row in story.tail(name)] == [2]


def test_a_source_that_is_stopped_continues_by_the_command_of_its_problem(story: Story) -> None:
    strict, snapshot = "remedy.strict", "remedy.snapshot"
    story.add(root(strict, COLUMNS))
    story.node.run(f"source set {strict} badRecords=stop")
    story.publish(strict, [sale("10:00", 1), b"{", sale("10:01", 2)])
    problem = problem_once(story, strict)
    follow(story, problem, "source skip")
    story.node.eventually(lambda: story.records(strict) == [2])
    assert source_of(story, strict)["why"] is None
    row = status(story, strict)
    assert (row["problem"], row["rejected"]) == (None, 1)
    listed = story.node.run(f"rejected list {strict}")
    assert "JSON" in listed
    problems = story.node.run("status --output json")["problems"]
    (remedy,) = [one["remedy"] for one in problems if one["of"] == strict]
    story.node.run(f"source set {strict} badRecords=auto")
    follow(story, remedy, "rejected retry")
    assert status(story, strict)["rejected"] == 1, "the source has not been corrected"
    follow(story, remedy, "rejected drop")
    assert not status(story, strict)["rejected"]

    story.node.topics().delete_topic(story.topic(strict))
    story.node.eventually(lambda: "topic" in problem_of(story, strict))
    follow(story, problem_of(story, strict), "source resume")
    story.publish(strict, [sale("10:02", 3)])
    story.node.eventually(lambda: story.records(strict) == [3])
    assert problem_of(story, strict) == ""

    merge = {"kind": "Snapshot", "primaryKey": ["id"]}
    story.add(root(snapshot, COLUMNS, merge=merge))
    story.ingest(snapshot, [sale("10:00", number) for number in range(20)])
    story.publish(snapshot, [json.dumps(sale("11:00", 1)).encode()])
    problem = problem_once(story, snapshot)
    follow(story, problem, "source set")
    follow(story, problem, "source resume")
    story.node.eventually(lambda: problem_of(story, snapshot) == "")
    story.node.eventually(lambda: story.records(snapshot) == [20 + 19 + 2])


def test_late_records_are_late_no_more_after_the_delay_that_the_remark_proposes(story: Story) -> None:
    name = "remedy.late"
    story.add(root(name, COLUMNS))
    story.publish(name, [sale("10:00", 1), sale("12:00", 2)])
    story.pull(name)
    story.publish(name, [sale("11:00", 3)])
    story.pull(name)
    said = story.node.attempt(f"source show {name}").stderr.decode()
    follow(story, said, "source set")
    story.publish(name, [sale("14:00", 4)])
    story.pull(name)
    before = source_of(story, name)["late"]
    story.publish(name, [sale("13:00", 5)])
    story.pull(name)
    assert (before, source_of(story, name)["late"]) == (1, 1)


def test_dropped_and_lost_data_comes_back_by_the_command_that_is_named(story: Story, tmp_path: Path) -> None:
    owner, copy, other = "remedy.owner", "remedy.copied", "remedy.copy"
    story.add(root(owner, COLUMNS), ratio("remedy.derived", owner, "quantity"))
    story.add(ratio("remedy.again", "remedy.derived", "x"))
    story.ingest(owner, [sale("10:00", 1)])
    story.pull("remedy.derived remedy.again")
    story.node.run("system drop-data remedy.derived --yes")
    (verdict,) = story.verify("remedy.again", code=1)
    follow(story, verdict["problems"][0]["text"], "pull remedy.derived")
    assert [one["verdict"] for one in story.verify("remedy.again")] == ["valid"]
    story.node.run("system drop-data remedy.derived --yes")
    follow(story, story.node.fails("tail remedy.derived"), "pull")
    assert len(story.tail("remedy.derived")) == 1
    story.node.run("system drop-data remedy.derived --yes")
    (verdict,) = story.verify("remedy.derived", code=1)
    follow(story, verdict["problems"][0]["text"], "pull")
    assert [one["verdict"] for one in story.verify("remedy.derived")] == ["valid"]

    url = (tmp_path / "published").as_uri()
    story.node.run(f"push {owner} --to {url}")
    said = story.node.fails(f"push {owner} --to nowhere/{owner}")
    follow(story, said, "repo add", NAME="nowhere", URL=tmp_path.as_uri())
    assert story.node.run("repo list --output json")[0]["name"] == "nowhere"
    refused = story.node.fails(f"pull {url} --as {copy}")
    follow(story, refused, "rename", NEW=other)
    assert story.find(other) is not None
    assert story.records(other) == [1]


def test_references_and_names_that_are_damaged_are_removed_by_the_command_that_is_named(story: Story) -> None:
    name = "remedy.damaged"
    story.add(root(name, COLUMNS))
    said = story.node.fails(f"tail {name}@next")
    follow(story, said, "ref list", DATASET=name)
    follow(story, said, "ref set", DATASET=name, NAME="next")
    story.node.run(f"log {name}@next")
    (story.folder(name) / "refs" / "head").unlink()
    problem = problem_once(story, name)
    follow(story, problem, "delete")
    assert story.find(name) is None


def test_a_refused_push_or_poll_passes_after_the_command_that_is_named(story: Story, tmp_path: Path) -> None:
    snapshot, changes, rows, polled = "remedy.blank", "remedy.halves", "remedy.rows", "remedy.missing"
    story.add(root(snapshot, COLUMNS, merge={"kind": "Snapshot", "primaryKey": ["id"]}))
    story.ingest(snapshot, [sale("10:00", 1)])
    said = story.node.fails(f"ingest {snapshot} -", stdin=b"")
    follow(story, said, "source set", DATASET=snapshot)
    story.node.run(f"ingest {snapshot} -", stdin=b"")
    assert story.records(snapshot) == [2]
    story.ingest(snapshot, [sale("10:00", 2)])
    story.node.run(f"source set {snapshot} emptySnapshot=auto maxRetractedShare=1")
    said = story.node.fails(f"ingest {snapshot} -", stdin=b"")
    follow(story, said, "source set", DATASET=snapshot)
    story.node.run(f"ingest {snapshot} -", stdin=b"")
    assert story.records(snapshot) == [4]

    story.add(root(changes, ("op INT", *COLUMNS), merge={"kind": "ChangelogStream", "primaryKey": ["id"]}))
    story.publish(changes, [sale("10:00", 1, op=0), sale("10:01", 1, op=2)])
    story.node.eventually(lambda: "waits for more" in problem_of(story, changes))
    follow(story, problem_of(story, changes), "source skip")
    story.node.eventually(lambda: problem_of(story, changes) == "")
    assert story.records(changes) == [1]

    story.add(root(rows, COLUMNS))
    story.ingest(rows, [sale("10:00", 1), sale("10:00", 2, "many")])
    said = story.node.fails(f"rejected retry {rows} --all")
    follow(story, said, "rejected drop", DATASET=rows)
    assert not status(story, rows)["rejected"]

    there, manifest = tmp_path / "there.csv", root(polled, ())
    there.write_text("event_time,id\n2026-03-01T10:00:00Z,7\n")
    source = {
        "kind": "SetPollingSource",
        "fetch": {"kind": "Url", "url": (tmp_path / "elsewhere.csv").as_uri()},
        "read": {"kind": "Csv", "header": True},
        "merge": {"kind": "Append"},
    }
    manifest["content"]["metadata"] = [source]
    story.add(manifest)
    said = story.node.fails(f"pull {polled}")
    better = {**source, "fetch": {"kind": "Url", "url": there.as_uri()}}
    follow(story, said, "commit", DATASET=polled, FILE=file_of(tmp_path, better))
    story.pull(polled)
    assert (story.records(polled), problem_of(story, polled)) == ([1], "")


def test_copies_are_completed_and_taken_over_by_the_commands_that_are_named(
    story: Story, guest: Story, tmp_path: Path
) -> None:
    owner, derived, moved = "remedy.origin", "remedy.from", "remedy.moved"
    story.add(root(owner, COLUMNS), ratio(derived, owner, "quantity"), root(moved, COLUMNS))
    story.ingest(owner, [sale("10:00", 1)])
    for number in range(2):
        story.ingest(moved, [sale("10:00", number)])
    story.pull(derived)
    urls = {name: (tmp_path / name).as_uri() for name in (owner, derived, moved)}
    for name, url in urls.items():
        story.node.run(f"push {name} --to {url}")
    guest.node.run(f"pull {urls[derived]} {urls[moved]}")
    (verdict,) = guest.verify(derived, code=1)
    follow(guest, verdict["problems"][0]["text"], "pull URL", URL=urls[owner])
    assert [one["verdict"] for one in guest.verify(derived)] == ["valid"]

    (lost, *_) = (guest.folder(derived) / "data").iterdir()
    lost.unlink()
    (verdict,) = guest.verify(derived, code=3)
    text = " ".join(one["text"] for one in verdict["problems"])
    follow(guest, text, "pull URL", URL=urls[derived])
    assert [one["verdict"] for one in guest.verify(derived)] == ["valid"]

    for file in (guest.folder(owner) / "data").iterdir():
        file.unlink()
    follow(guest, guest.node.fails(f"tail {owner}"), "pull URL", URL=urls[owner])
    assert len(guest.tail(owner)) == 1

    proof = f"prove {owner} 4711"
    assert "key import" in commands(guest.node.fails(proof))
    said = guest.node.fails(f"ingest {owner} -", stdin=json.dumps(sale("10:01", 2)).encode())
    story.node.run(f"key export {owner} {tmp_path / 'key'}")
    follow(guest, said, "key import", DATASET=owner, FILE=tmp_path / "key")
    guest.node.run(proof)
    assert commands(guest.node.fails(f"source resume {owner}")) == [f"pull {owner}"]
    follow(guest, problem_of(guest, owner), "pull")
    assert problem_of(guest, owner) == ""
    guest.ingest(owner, [sale("10:01", 2)])
    assert guest.records(owner) == [2]

    heads = [str(block) for block, _ in story.chain(moved).blocks]
    story.node.run(f"reset {moved} {heads[-2]} --yes")
    story.node.run(f"push {moved} --to {urls[moved]} --force")
    follow(guest, guest.node.fails(f"pull {urls[moved]}"), "pull URL --force", URL=urls[moved])
    assert guest.records(moved) == [1]
    guest_copy = story.node.run(f"reset {moved} {heads[-3]} --yes")
    assert guest_copy is not None
    story.ingest(moved, [sale("12:00", 9)])
    story.node.run(f"push {moved} --to {urls[moved]} --force")
    follow(guest, guest.node.fails(f"pull {urls[moved]}"), "pull URL --force", URL=urls[moved])
    assert [row["id"] for row in guest.tail(moved)][-1:] == [9]


def test_files_that_the_source_of_a_copy_lacks_are_recomputed_as_the_remark_says(
    story: Story, guest: Story, tmp_path: Path
) -> None:
    owner, derived = "remedy.kept", "remedy.bare"
    story.add(root(owner, COLUMNS), ratio(derived, owner, "quantity"))
    story.ingest(owner, [sale("10:00", 1)])
    story.pull(derived)
    urls = {name: (tmp_path / name).as_uri() for name in (owner, derived)}
    for name, url in urls.items():
        story.node.run(f"push {name} --to {url}")
    for file in (tmp_path / derived / "data").iterdir():
        file.unlink()

    said = guest.node.attempt(f"pull {urls[derived]}").stderr.decode()
    assert f"once its inputs are pulled: {status(story, owner)['dataset_id']}" in said
    guest.node.run(f"pull {urls[owner]}")
    follow(guest, said, f"pull {derived}")
    assert guest.tail(derived) == story.tail(derived)
    assert "does not have" not in guest.node.attempt(f"pull {derived}").stderr.decode()


def test_rejected_messages_that_are_gone_are_no_longer_counted_after_the_command_of_the_remark(
    guest: Story,
) -> None:
    name = "remedy.expired"
    guest.add(root(name, COLUMNS))
    guest.publish(name, [sale("10:00", 1), b"{", sale("10:01", 2)])
    guest.pull(name)
    letters = guest.node.connected.kafka_prefix + DEAD_LETTERS
    ends = [TopicPartition(letters, number, OFFSET_END) for number in guest.node.topics().ends(letters)]
    admin = AdminClient(guest.node.clients)  # its answers come while it is referenced
    for answer in admin.delete_records(ends).values():
        answer.result(60)

    said = guest.node.attempt(f"rejected list {name}").stderr.decode()
    assert "1 of 1 rejected messages are no longer in the dead-letter topic" in said
    follow(guest, said, "rejected drop")
    assert not status(guest, name)["rejected"]
    assert "dead-letter topic" not in guest.node.attempt(f"rejected list {name}").stderr.decode()


def test_space_is_freed_by_the_commands_that_are_named(crowded: Story) -> None:
    large, derived, small, texts = "remedy.large", "remedy.larger", "remedy.small", random.Random(7)
    columns = (*COLUMNS, "text STRING")
    query = "SELECT event_time, id, text FROM input"
    crowded.add(root(large, columns), derivative(derived, {"input": large}, query), root(small, columns))

    def incompressible(count: int) -> list[Row]:
        return [sale("10:00", number, text=texts.randbytes(50_000).hex()) for number in range(count)]

    def disk() -> Row:
        rows = json.loads(crowded.node.attempt("doctor --output json").stdout)
        return next(dict(row) for row in rows if row["check"] == "disk")

    def problems() -> dict[str, Row]:
        return {row["of"]: row for row in crowded.node.run("status --output json")["problems"]}

    crowded.ingest(large, incompressible(600))
    crowded.pull(derived)
    assert disk()["state"] == "ok"
    leave_free(crowded.node.home, ADVISED_FREE_BYTES - MIB)
    assert disk()["state"] == "warning"
    follow(crowded, disk()["remedy"], "system drop-data", DATASET=derived)
    assert disk()["state"] == "ok"

    leave_free(crowded.node.home, MIB)
    crowded.publish(small, incompressible(60))
    crowded.node.eventually(lambda: "the disk is full" in problem_of(crowded, small))
    follow(crowded, str(problems()["disk"]["remedy"]), "delete", DATASET=f"{derived} {large}")
    crowded.node.eventually(lambda: problems() == {})
    crowded.node.eventually(lambda: crowded.records(small) == [60])
