"""Rare cases of each operation: missing data, too late, busy, or a bug."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import click
import pytest
from odf_testing.builders import a_dataset, a_query, a_seed
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_cli.embedded.node_file import Node, write_node
from odf_common.codec.envelopes import envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.errors import Damaged, InvalidInput, NotFound, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import KnownEvent, SetInfo, SetTransform, UnknownEvent
from odf_common.ports.store import CatalogEntry, DatasetUnknown
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.api.bus_handlers import Commands, known_event
from odf_coordinator.commit.committer import Overtaken
from odf_coordinator.commit.dataset_locks import DatasetBusy
from odf_coordinator.definitions.diff import require_admitted
from odf_coordinator.errors import DataNotDerived
from odf_coordinator.lifecycle import topic_name, topics_for
from odf_coordinator.operations import pull as pull_module
from odf_coordinator.operations.pull import Puller, PullProgress

INFO = SetInfo(description="cities of the world")


def test_a_proposal_to_a_deleted_chain_is_too_late(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")
    node.refs.remove(known.id, "head", expected=known.state.head)
    outcome = node.propose(known, (INFO,))
    assert outcome == Overtaken(expected=known.state.head, head=None)


def test_no_reference_is_staged_without_a_head(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")
    node.refs.remove(known.id, "head", expected=known.state.head)
    with pytest.raises(InvalidInput, match="has no head, so it cannot have a reference old"):
        node.importer._stage(known.id, "old", None, known.state.head)


def test_the_data_of_a_derivative_with_a_missing_input_is_not_dropped(pair: Coordinator) -> None:
    cities = pair.find("cities").id
    pair.catalog.remove("cities")
    with pytest.raises(DataNotDerived, match=f"{cities}, an input of cities.copy, is missing"):
        pair.dropper.drop("cities.copy")
    with pytest.raises(DatasetUnknown):
        pair.dropper.drop("cities")


def test_the_data_of_a_root_is_not_dropped(pair: Coordinator) -> None:
    with pytest.raises(DataNotDerived, match="cities is a root"):
        pair.dropper.drop("cities")


def pull(puller: Puller, *refs: str) -> Iterator[PullProgress]:
    return puller.pull(refs, is_all=False, is_recursive=False, is_wanted=lambda: True)


def pulled(node: Coordinator, *refs: str) -> list[PullProgress]:
    return list(pull(node.puller, *refs))


def test_a_bug_in_a_pull_fails_that_dataset_alone(
    pair: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.add(root.replace("name: cities", "name: towns"))
    cities = pair.find("cities").id

    def drain(dataset: DatasetId) -> Iterator[int]:
        if dataset == cities:
            raise ZeroDivisionError
        yield 0

    monkeypatch.setattr(pair, "puller", replace(pair.puller, drain=drain))
    with capture_logs() as logs:
        last = {one.alias: one for one in pulled(pair, "cities", "towns")}
    assert last["towns"].state == "up-to-date"
    assert last["cities"].state == "failed"
    assert last["cities"].error == "ZeroDivisionError in the coordinator; see its log"
    assert last["cities"].head == pair.find("cities").state.head
    assert "pull failed: a bug" in [one["event"] for one in logs]


def test_a_pull_waits_until_nothing_is_left_in_the_topics(pair: Coordinator) -> None:
    puller = replace(pair.puller, drain=lambda _: iter((2, 0, 1)))
    steps = [one.state for one in pull(puller, "cities")]
    assert steps == ["running", "waiting", "waiting", "up-to-date"]


def test_many_roots_are_pulled_at_a_time_and_one_derivative(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {}

    def steps_of(
        before: Mapping[DatasetId, object], _: object, limit: Callable[[DatasetId], int]
    ) -> Iterator[PullProgress]:
        limits.update({one: limit(one) for one in before})
        return iter(())

    monkeypatch.setattr(pull_module, "concurrent_steps", steps_of)
    assert list(pull(replace(pair.puller, roots_at_once=7), "cities", "cities.copy")) == []
    assert limits == {pair.find("cities").id: 7, pair.find("cities.copy").id: 1}


def test_a_pull_of_what_was_deleted_meanwhile_says_so(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(pair.datasets), "read", lambda *_: None)
    with pytest.raises(DatasetUnknown, match="cities"):
        pulled(pair, "cities")


def test_a_dataset_without_any_reference_is_unknown(pair: Coordinator) -> None:
    known = pair.find("cities")
    pair.refs.remove(known.id, "head", expected=known.state.head)
    with pytest.raises(NotFound, match="cities"):
        pair.references.all("cities")


def test_a_command_that_no_handler_knows_and_an_event_of_a_later_version_are_refused(
    pair: Coordinator,
) -> None:
    commands = Commands(committer=pair.committer, importer=pair.importer)
    known = pair.find("cities")
    (answer,) = commands.handle(envelope(known.id, bus.Committed()))
    assert answer.envelope.refused.text == "unknown command committed"
    assert known_event(encode_event(INFO)) == INFO
    with pytest.raises(InvalidInput, match="of kind 99 cannot be committed: later"):
        raise_unknown(UnknownEvent(discriminator=99, raw=b"", reason="later"))


def raise_unknown(event: UnknownEvent) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odf_coordinator.api.bus_handlers.decode_event", lambda _: event)
        known_event(b"")


@pytest.mark.parametrize(
    ("error", "is_answered"),
    [
        (Unavailable(what="Redis", why="down"), False),
        (StorageUnavailable(file="blocks", why="full", remedy="free some"), True),
        (Damaged(file="blocks", why="cut off"), True),
        (InvalidInput(text="no"), True),
    ],
)
def test_a_command_is_answered_unless_it_can_be_retried(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch, error: Exception, is_answered: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(pair.committer), "commit", fail)
    commands = Commands(committer=pair.committer, importer=pair.importer)
    message = envelope(pair.find("cities").id, bus.Propose())
    if is_answered:
        (answer,) = commands.handle(message)
        assert answer.envelope.refused.code == type(error).__name__
    else:
        with pytest.raises(type(error)):
            commands.handle(message)


def test_a_dataset_that_another_operation_holds_is_busy_after_a_while(pair: Coordinator) -> None:
    known = pair.find("cities")
    claim = pair.catalog.claim(known.id)
    assert claim is not None
    claims = replace(pair.claims, wait_seconds=0.0)
    with pytest.raises(DatasetBusy, match="for 0 s"):
        claims.remove(known.id, lambda _: None)
    assert not claims.settle(known.id, lambda _: True), "it is held"
    claim.release()
    assert not claims.settle(known.id, lambda _: False), "it is not due"
    assert pair.catalog.by_alias("cities") is not None
    with pytest.raises(DatasetUnknown):
        claims.entry(a_dataset("another"))


@pytest.mark.parametrize("can_release", [True, False])
def test_a_removal_takes_the_reserve_of_a_full_disk(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch, can_release: bool
) -> None:
    known, written = pair.find("cities.copy"), []

    class Claim:
        def write(self, entry: CatalogEntry) -> None:
            written.append(entry)
            if len(written) == 1:
                raise StorageUnavailable(file="claims", why="full", remedy="free some")

    monkeypatch.setattr(type(pair.claims.reserve), "release", lambda _: can_release)
    if can_release:
        pair.claims._record_removal(Claim(), known.entry)  # type: ignore[arg-type]
        assert written == [known.entry] * 2
    else:
        with pytest.raises(StorageUnavailable):
            pair.claims._record_removal(Claim(), known.entry)  # type: ignore[arg-type]


def test_no_two_sources_share_a_topic_however_many_names_collide() -> None:
    taken = {topic_name("cities", "default", ())}
    for _ in range(4):
        name = topic_name("cities", "default", taken)
        assert name not in taken
        assert name.startswith("odf.push.cities.default-")
        taken.add(name)
    assert topic_name("a/B", "x y", (), prefix="p.") == "p.odf.push.a.b.x-y"
    long = topic_name("c" * 300, "default", ())
    assert len(long) == 249, "the longest that Kafka takes"
    longest = "c" * (249 - len("odf.push..d"))
    assert topic_name(longest, "d", ()) == f"odf.push.{longest}.d"
    assert len(topic_name(longest + "c", "d", ())) == 249
    both = topics_for("cities", ("a.b", "a b", "a-b"), ())
    assert len(set(both.values())) == 3


Odf = Callable[..., int]


@pytest.fixture
def worked(odf: Odf, node: Coordinator) -> Iterator[Coordinator]:
    """The datasets with two records, and a scheduler that transforms."""
    for minute, city in enumerate(("Oslo", "Rome")):
        node.push("cities", city, minute=minute)
        node.work()
    stop = threading.Event()
    worker = threading.Thread(target=node.scheduler.run, args=(stop,), daemon=True)
    worker.start()
    yield node
    stop.set()
    worker.join()


def test_an_input_is_reset_by_force_and_its_derivatives_follow(
    odf: Odf, worked: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = worked.find("cities.copy").state.input_progress[0].last_block
    worked.push("cities", "Lima", minute=2)
    worked.puller.scheduler.wait(
        worked.find("cities.copy").id, worked.scheduler.request(worked.find("cities.copy").id), 30
    )

    assert odf("reset", "cities", str(kept), "--yes") == 1
    assert "--force" in capsys.readouterr().err
    assert odf("reset", "cities", str(kept), "--yes", "--force") == 0
    capsys.readouterr()
    assert odf("pull", "--reset-derivatives", "cities", "-o", "json") == 0

    said = capsys.readouterr()
    assert "rolled back cities.copy" in said.err
    assert [row["dataset"] for row in json.loads(said.out)] == ["cities", "cities.copy"], "inputs first"
    assert worked.record_reader.tail("cities.copy", 9)["city"].to_pylist() == ["Oslo", "Rome"]


def test_a_watermark_is_not_set_while_derivatives_are_rolled_back(
    odf: Odf, capsys: pytest.CaptureFixture[str]
) -> None:
    time = "2026-01-01T00:00:00Z"
    assert odf("pull", "cities", "--reset-derivatives", "--set-watermark", time) == 2
    assert "one after the other" in capsys.readouterr().err


def test_dropped_data_is_reported_and_rebuilt(
    odf: Odf, worked: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert odf("system", "drop-data", "cities.copy", "--yes", "-o", "json") == 0
    dropped = json.loads(capsys.readouterr().out)
    assert (dropped["dataset"], dropped["slices"], dropped["checkpoints"]) == ("cities.copy", 2, 2)
    assert dropped["bytes"] > 0

    assert dropped_of(odf, capsys) == {"cities": False, "cities.copy": True}
    assert odf("tail", "cities.copy") == 1
    assert "`odf pull cities.copy` recomputes it" in capsys.readouterr().err
    assert odf("pull", "cities.copy", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "rebuilt"
    assert odf("tail", "cities.copy") == 0
    capsys.readouterr()
    assert dropped_of(odf, capsys) == {"cities": False, "cities.copy": False}


def dropped_of(odf: Odf, capsys: pytest.CaptureFixture[str]) -> dict[str, bool]:
    assert odf("list", "-o", "json") == 0
    return {row["alias"]: row["dropped"] for row in json.loads(capsys.readouterr().out)}


def test_the_status_reports_dropped_data_and_stalled_datasets(
    odf: Odf, worked: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = os.environ["ODF_COORDINATOR_GRPC"]
    write_node(Node(home=tmp_path, pid=os.getpid(), grpc={"coordinator": address}))
    worked.dropper.drop("cities.copy")
    worked.push("cities", "Lima", minute=2)
    copy = worked.find("cities.copy").id
    worked.scheduler.wait(copy, worked.scheduler.request(copy), 30)

    assert odf("status", "-o", "json") == 0

    rows = {row["alias"]: row for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert (rows["cities"]["dropped"], rows["cities"]["problem"]) == (False, None)
    assert rows["cities.copy"]["dropped"]
    problem = rows["cities.copy"]["problem"]
    assert "`odf pull cities.copy`" in problem
    assert odf("status") == 0
    head, _, *shown = capsys.readouterr().out.splitlines()[-4:]
    assert head.split() == ["dataset", "records", "watermark", "records/s", "waiting", "dropped", "problem"]
    assert "the data of cities.copy is missing" in shown[1]
    assert odf("status", "Cities.Copy") == 0
    assert problem in capsys.readouterr().out
    assert odf("status", "nowhere") == 1
    assert "dataset nowhere does not exist" in capsys.readouterr().err


def test_a_block_to_reset_to_is_named_as_elsewhere(
    odf: Odf, worked: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    head = str(worked.find("cities.copy").state.head)
    assert odf("reset", "cities.copy", "zzzzzzzz", "--yes") == 1
    assert "block zzzzzzzz in cities.copy does not exist" in capsys.readouterr().err
    assert odf("reset", "cities.copy", "f1620…", "--yes") == 2
    assert "part of a hash needs at least 8 characters" in capsys.readouterr().err
    number = worked.find("cities.copy").state.sequence_number
    for block in (head, head[:16], head[-8:], str(number)):
        assert odf("reset", "cities.copy", block, "--yes", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["head"] == head
    assert odf("reset", "cities.copy", str(number - 1), "--yes") == 0
    assert worked.find("cities.copy").state.sequence_number <= number


def test_a_root_is_reported_to_have_no_query(odf: Odf, capsys: pytest.CaptureFixture[str]) -> None:
    assert odf("inspect", "query", "cities") == 1
    assert "error: cities is a root: its records come from its sources" in capsys.readouterr().err
    assert odf("inspect", "schema", "cities") == 1
    assert "error: cities has no data yet, so it has no schema" in capsys.readouterr().err
    assert odf("inspect", "query", "cities.copy") == 0


def test_dropping_asks_first_and_refuses_roots(
    odf: Odf, worked: Coordinator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.confirm", _no)
    assert odf("system", "drop-data", "cities.copy") == 130
    assert worked.record_reader.tail("cities.copy", 1).num_rows == 1
    capsys.readouterr()

    assert odf("system", "drop-data", "cities", "--yes") == 1
    assert "cities is a root" in capsys.readouterr().err


def _no(question: str, **_: object) -> None:
    raise click.Abort


@pytest.mark.parametrize("query", ["", " \n ", ";", "-- nothing", "/* a\nb */ ; -- c"])
def test_an_empty_query_is_reported_as_empty(
    odf: Odf, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    assert odf("sql", "-c", query) == 1
    assert capsys.readouterr().err.startswith("error: the query is empty\n")


@pytest.mark.parametrize("before", [0, 1, 2])
def test_an_event_that_breaks_a_rule_is_named_by_its_place(before: int) -> None:
    events: list[KnownEvent] = [SetInfo(description=str(number)) for number in range(before)]
    events.append(SetTransform(inputs=(), transform=a_query()))
    with pytest.raises(InvalidInput, match="not allowed in a root dataset") as caught:
        require_admitted(None, a_seed(), events)
    assert caught.value.where == f"content.metadata[{before}]"
