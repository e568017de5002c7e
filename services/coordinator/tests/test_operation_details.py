"""Rare cases of each operation: missing data, too late, busy, or a bug."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest
from odf_testing.builders import a_dataset
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.codec.envelopes import envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.errors import Damaged, InvalidInput, NotFound, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SetInfo, UnknownEvent
from odf_common.ports.store import CatalogEntry, DatasetUnknown
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.api.bus_handlers import Commands, known_event
from odf_coordinator.commit.committer import Overtaken
from odf_coordinator.commit.dataset_locks import DatasetBusy
from odf_coordinator.errors import DataNotDerived
from odf_coordinator.lifecycle import topic_name, topics_for
from odf_coordinator.operations import pull as pull_module
from odf_coordinator.operations.pull import Puller, PullProgress

INFO = SetInfo(description="cities of the world")


@pytest.fixture
def pair(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """A root with a slice, and a derivative that has read it."""
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    return node


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
