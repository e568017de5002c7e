"""What each RPC of ingest does and returns, without a server."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pyarrow as pa
import pytest
from odf_testing.builders import a_chain, a_dataset, a_hash, a_polling_source, a_seed
from odf_testing.memory_store import MemoryCatalog

from odf_common.adapters.local.key_files import NotOwned
from odf_common.adapters.local.process_files import Staging
from odf_common.codec.times import time_message
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import StoredLetter
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1 import ingest_pb2 as wire
from odf_ingest.api import grpc_servicer
from odf_ingest.api.grpc_servicer import IngestServicer, reports_of
from odf_ingest.api.lookup import PushTargets
from odf_ingest.commit.watermark import FutureRecord, Lateness
from odf_ingest.control.rejected_messages import MessageLocation
from odf_ingest.poll.poller import PollSummary
from odf_ingest.push.source_topics import Key
from odf_ingest.read.arrow_ipc import row_stream
from odf_ingest.source_settings import DAY_MS, UNLIMITED, Milliseconds, SourceSettings, save_settings

ROW = '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n'
OTHER = a_dataset("other")
HEAD = a_hash("head")
TIME = Timestamp.from_ms(1_600_000_000_000)
ACTIVE = cast("grpc.ServicerContext", SimpleNamespace(is_active=lambda: True))


def gone_after(looks: int) -> grpc.ServicerContext:
    """Return the context of a caller that disconnects after some checks."""
    left = iter([True] * looks)
    return cast("grpc.ServicerContext", SimpleNamespace(is_active=lambda: next(left, False)))


@pytest.fixture
def servicer(bench: Any, tmp_path: Path) -> Any:
    """A servicer of one dataset; `given` has the answers of its other components."""
    catalog = MemoryCatalog()
    catalog.add(CatalogEntry(alias="cities", dataset_id=bench.dataset))
    given = SimpleNamespace(require_owned=lambda _: None)
    scratch = iter(tmp_path / f"scratch{number}" for number in range(9))

    def require_owned(dataset: DatasetId) -> None:
        given.require_owned(dataset)

    def folder() -> Path:
        made = next(scratch)
        made.mkdir()
        return made

    made = IngestServicer(
        catalog=catalog,
        targets=PushTargets(catalog=catalog, require_owned=require_owned),
        queues=bench.queues,
        preparer=bench.preparer,
        drains=cast("Any", given),
        poller=cast("Any", given),
        sources=cast("Any", given),
        schedule=cast("Any", given),
        owned=cast("Any", given),
        rejecting=bench.rejecting,
        rejected=cast("Any", given),
        commands=cast("Any", SimpleNamespace(control=given, resume=None, skip=None)),
        clock=bench.clock,
        staging=Staging(tmp_path),
        scratch=folder,
    )
    made.given = given  # type: ignore[attr-defined]
    yield made
    assert not list(tmp_path.glob("scratch*")), "what was received is removed"


def push(servicer: IngestServicer, *contents: str, **header: Any) -> wire.PushReply:
    parts = [wire.PushPart(header=wire.PushHeader(ref="cities", **header))]
    parts += [wire.PushPart(content=text.encode()) for text in contents]
    return servicer.Push(iter(parts), ACTIVE)


def staged(tmp_path: Path, text: str) -> str:
    file = Staging(tmp_path).path("file-1")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file.name


def test_a_push_is_its_header_and_then_its_bytes(servicer: Any, bench: Any) -> None:
    reply = push(servicer, ROW[:9], ROW[9:], idempotency_key="k")
    assert (reply.head, reply.records, reply.already, reply.rejected) == (str(bench.state.head), 1, False, 0)
    assert not reply.HasField("late")
    assert bench.values("id", "v") == [(1, "a")]
    again = push(servicer, ROW, idempotency_key="k")
    assert (again.already, again.head) == (True, reply.head)
    assert push(servicer, ROW).records == 1, "without a key each push is a separate one"


def test_parts_in_another_order_are_refused(servicer: Any, bench: Any) -> None:
    content = wire.PushPart(content=b"x")
    header = wire.PushPart(header=wire.PushHeader(ref="cities"))
    orders: tuple[tuple[list[wire.PushPart], str], ...] = (
        ([], "must start with its header"),
        ([content, header], "must start with its header"),
        ([wire.PushPart()], "must start with its header"),
        ([header, content, header], "has one header"),
    )
    for parts, why in orders:
        with pytest.raises(InvalidInput, match=why):
            servicer.Push(iter(parts), ACTIVE)
    with pytest.raises(NotFound, match="nowhere"):
        servicer.Push(iter([wire.PushPart(header=wire.PushHeader(ref="nowhere"))]), ACTIVE)
    assert bench.rows() == []


def test_a_push_to_a_copy_is_refused_before_its_bytes_are_read(servicer: Any, bench: Any) -> None:
    def refuse(dataset: DatasetId) -> None:
        raise NotOwned(text=f"{dataset} is a copy")

    servicer.given.require_owned = refuse
    parts = iter([wire.PushPart(header=wire.PushHeader(ref="cities")), wire.PushPart(content=ROW.encode())])
    with pytest.raises(NotOwned, match=str(bench.dataset)):
        servicer.Push(parts, ACTIVE)
    assert next(parts).content == ROW.encode()
    assert bench.rows() == []


def test_a_staged_file_is_taken_over(servicer: Any, bench: Any, tmp_path: Path) -> None:
    name = staged(tmp_path, ROW)
    assert push(servicer, staged=name, idempotency_key="k").records == 1
    assert not Staging(tmp_path).path(name).exists()
    for odd, error in (("../x", InvalidInput), ("..", InvalidInput), (name, NotFound)):
        with pytest.raises(error):
            push(servicer, staged=odd)


def test_records_without_a_time_get_only_that_of_the_push(servicer: Any, bench: Any) -> None:
    push(servicer, '{"id":1}', event_time=time_message(TIME))
    with pytest.raises(InvalidInput, match="line 1: column event_time: null is not allowed"):
        push(servicer, '{"id":2}')
    assert bench.values("event_time") == [(TIME.datetime(),)]


def test_a_push_may_have_its_own_format(servicer: Any, bench: Any) -> None:
    assert push(servicer, "[" + ROW + "]", input_format="json").records == 1
    assert bench.values("id") == [(1,)]


def test_late_records_are_reported_with_a_delay_that_would_have_been_enough(servicer: Any) -> None:
    push(servicer, ROW.replace("2020", "2021"))
    reply = push(servicer, ROW.replace("2020", "2021").replace("00:00:00Z", "00:00:00Z") + ROW)
    assert (reply.late.records, reply.records) == (1, 2)
    assert (reply.late.most, reply.late.proposed_delay) == ("366d", "366d")


def test_records_too_far_in_the_future_are_listed_until_their_source_allows_such_times(
    servicer: Any, bench: Any
) -> None:
    assert not servicer.Future(wire.FutureRequest(), ACTIVE).sources
    push(servicer, ROW, ROW.replace("2020", "2999"))
    (source,) = servicer.Future(wire.FutureRequest(), ACTIVE).sources
    assert (source.dataset_id, source.alias, source.name) == (str(bench.dataset), "cities", "")
    assert (source.records.records, source.records.offset) == (1, 1)
    assert str(bench.state.watermark) == "2020-01-01T00:00:00Z"
    bench.propose(replace(bench.state.push_sources["default"], source_name="other"))
    (source,) = servicer.Future(wire.FutureRequest(), ACTIVE).sources
    assert source.name == "default", "a command has to name it then"
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings.from_plain({"maxFuture": "none"}))
    assert not servicer.Future(wire.FutureRequest(), ACTIVE).sources
    push(servicer, ROW.replace("2020", "2998"), source_name="default")
    assert str(bench.state.watermark) == "2998-01-01T00:00:00Z"


def test_no_push_is_withdrawn_that_is_not_in_flight(servicer: Any) -> None:
    assert not servicer.CancelPush(wire.CancelPushRequest(idempotency_key="k"), ACTIVE).found


def test_a_drain_reports_until_nothing_waits_or_its_caller_leaves(servicer: Any, bench: Any) -> None:
    asked: list[CatalogEntry] = []

    def wait(entry: CatalogEntry) -> Iterator[object]:
        asked.append(entry)
        yield SimpleNamespace(waiting=3, head=None)
        yield SimpleNamespace(waiting=0, head=HEAD)

    servicer.given.wait = wait
    request = wire.DrainRequest(ref="cities")
    found = [(one.waiting, one.done, one.head) for one in servicer.Drain(request, ACTIVE)]
    assert found == [(3, False, ""), (0, True, str(HEAD))]
    assert [one.dataset_id for one in asked] == [bench.dataset]
    assert [one.waiting for one in servicer.Drain(request, gone_after(1))] == [3]


def test_a_poll_reports_its_stages_and_then_that_it_is_done(servicer: Any, bench: Any) -> None:
    def poll(dataset: object, report: Any, *, is_wanted: Any) -> None:
        assert dataset == bench.dataset
        assert is_wanted()
        report("fetching")
        report("reading")

    servicer.given.poll = poll
    found = [(one.stage, one.done) for one in servicer.Poll(wire.PollRequest(ref="cities"), ACTIVE)]
    assert found == [("fetching", False), ("reading", False), ("", True)]


def test_the_last_report_is_repeated_while_work_is_silent_and_its_error_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_servicer, "KEEP_ALIVE_SECONDS", 0.01)
    repeated: list[str] = []

    def work(report: Any) -> None:
        report("fetching")
        while repeated.count("fetching") < 3:
            pass
        raise Unavailable(what="the server", why="down")

    with pytest.raises(Unavailable, match="down"):
        repeated.extend(one for one in _noted(reports_of(work, "test"), repeated))
    assert set(repeated) == {"fetching"}


def _noted(reports: Iterable[str], into: list[str]) -> Iterator[str]:
    for one in reports:
        into.append(one)
        yield one


def test_polls_and_what_is_stalled_are_listed(servicer: Any, bench: Any) -> None:
    error = Unavailable(what="the server", why="down")
    failing = SimpleNamespace(
        dataset=bench.dataset, interval=3600, state="waiting", last=TIME, next=None, error=error, since=TIME
    )
    well = SimpleNamespace(
        dataset=OTHER, interval=7200, state="polling", last=None, next=TIME, error=None, since=None
    )
    unknown = SimpleNamespace(**{**vars(failing), "dataset": OTHER, "since": None})
    key = Key(OTHER, "default", "")
    servicer.given.views, servicer.given.failing = lambda: (failing, well), lambda: (failing,)
    servicer.given.stuck = lambda: {key: error}
    servicer.given.stuck_since = lambda one: 7 if one is key else None

    polls = servicer.Polls(wire.PollsRequest(), ACTIVE).polls
    assert [(one.dataset_id, one.interval, one.state, one.last, one.next) for one in polls] == [
        (str(bench.dataset), 3600, "waiting", str(TIME), ""),
        (str(OTHER), 7200, "polling", "", str(TIME)),
    ]
    first, second = servicer.Stuck(wire.StuckRequest(), ACTIVE).sources
    assert (first.dataset_id, first.source_name, first.why, first.advice, first.since) == (
        str(OTHER),
        "default",
        str(error),
        error.advice(),
        7,
    )
    assert (second.dataset_id, second.why, second.since) == (
        str(bench.dataset),
        f"its polls fail: {error}",
        TIME.ns,
    )
    servicer.given.failing, servicer.given.stuck = (lambda: (unknown,)), dict
    (only,) = servicer.Stuck(wire.StuckRequest(), ACTIVE).sources
    assert not only.HasField("since")


LETTERS = tuple(
    StoredLetter(
        topic="topic",
        topic_id="id",
        partition=0,
        offset=number,
        source="default",
        reason="no JSON",
        value=b"value" * 2,
        size=10 * number,
        ms=TIME.ms,
        header_bytes=2,
    )
    for number in (1, 2, 3)
)


def test_rejected_messages_are_listed_up_to_a_limit_and_counted_all(servicer: Any, bench: Any) -> None:
    asked: list[object] = []

    def open_(dataset: object, wanted: list[MessageLocation]) -> Iterator[StoredLetter]:
        asked.append((dataset, wanted))
        yield from LETTERS

    servicer.given.open, servicer.given.count = open_, lambda _: 5

    def listed(context: grpc.ServicerContext = ACTIVE, **options: Any) -> list[wire.RejectedPart]:
        return list(servicer.Rejected(wire.RejectedRequest(ref="cities", **options), context))

    *messages, counts = listed()
    assert (counts.counts.open, counts.counts.found) == (5, 3)
    assert [one.message.size for one in messages] == [10, 20, 30]
    one = messages[0].message
    assert (one.topic, one.reason, one.time, one.value) == ("topic", "no JSON", TIME.ms, b"value" * 2)
    assert (one.header_bytes, one.location.source_name, one.location.location) == (
        2,
        "default",
        LETTERS[0].location,
    )
    assert [part.message.is_cut for part in messages] == [not letter.is_whole for letter in LETTERS]
    *messages, counts = listed(limit=2, value_bytes=3)
    assert [one.message.value for one in messages] == [b"val", b"val"]
    assert counts.counts.found == 3
    assert len(listed(gone_after(2))) == 2
    location = wire.RejectedLocation(source_name="default", location="topic/0/1")
    listed(locations=[location])
    assert asked[-1] == (bench.dataset, [MessageLocation(source="default", location="topic/0/1")])


def test_a_rejected_row_of_a_table_is_shown_as_json(servicer: Any) -> None:
    row = pa.table({"id": ["x" * 50], "at": pa.array([1], pa.timestamp("ns", "UTC")), "city": ["Zürich"]})
    text = f'{{"id": "{"x" * 50}", "at": "1970-01-01T00:00:00.000000001Z", "city": "Zürich"}}'.encode()
    two = pa.table({"id": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, two.schema) as writer:
        writer.write_table(two)
    kept = [row_stream(row, 0), row_stream(row, 0)[:-40], bytes(sink.getvalue())]
    letters = [replace(LETTERS[0], topic="", value=value, size=len(value)) for value in kept]
    of_topic = replace(letters[0], topic="topic")
    servicer.given.open, servicer.given.count = lambda *_: iter([*letters, of_topic]), lambda _: 4
    *parts, _ = servicer.Rejected(wire.RejectedRequest(ref="cities"), ACTIVE)
    shown = [(part.message.value, part.message.size) for part in parts]
    assert shown == [(text, len(text)), *((value, len(value)) for value in (*kept[1:], kept[0]))]
    first, *_ = servicer.Rejected(wire.RejectedRequest(ref="cities", value_bytes=9), ACTIVE)
    assert (first.message.value, first.message.size) == (text[:9], len(text))


def test_rejected_messages_are_settled_as_requested(servicer: Any, bench: Any) -> None:
    done: list[object] = []

    def settle(name: str) -> Any:
        def run(dataset: object, wanted: object) -> object:
            done.append((name, dataset, wanted))
            return SimpleNamespace(count=1, cut=2, open=3, unfit=4, why="odd")

        return run

    servicer.given.retry, servicer.given.drop = settle("retry"), settle("drop")
    request = wire.SettleRejectedRequest
    for action in (request.RETRY, request.DROP):
        reply = servicer.SettleRejected(request(ref="cities", action=action), ACTIVE)
        assert (reply.settled, reply.cut, reply.open, reply.unfit, reply.unfit_reason) == (1, 2, 3, 4, "odd")
    assert done == [("retry", bench.dataset, []), ("drop", bench.dataset, [])]
    with pytest.raises(InvalidInput, match="retry or drop"):
        servicer.SettleRejected(request(ref="cities"), ACTIVE)


def test_the_state_of_sources_is_shown_and_after_a_change_too(servicer: Any, bench: Any) -> None:
    settings = SimpleNamespace(
        shown=lambda: {"watermarkDelay": "1h"},
        non_default=lambda: ["watermarkDelay"],
        max_future=Milliseconds(DAY_MS),
    )
    source = SimpleNamespace(
        name="default",
        topic="topic",
        state="reading",
        since="2020",
        why="why",
        advice="advice",
        next={0: 7},
        next_poll="2021",
        waiting=0,
        settings=settings,
        late=Lateness(count=2, most=61_000, future=3, first_future=FutureRecord(offset=7, time=Timestamp(0))),
    )
    changes: list[object] = []
    servicer.given.show = lambda entry, name: [source] if entry.dataset_id == bench.dataset else []

    def change(entry: CatalogEntry, name: str, changed: Mapping[str, str]) -> str:
        assert entry.dataset_id == bench.dataset
        changes.append((name, dict(changed)))
        return name

    servicer.given.change = change
    request = wire.SetSourceRequest(ref="cities", source_name="default", changes={"watermarkDelay": "1h"})
    for reply in (
        servicer.ShowSources(wire.SourceRequest(ref="cities"), ACTIVE),
        servicer.SetSource(request, ACTIVE),
    ):
        (one,) = reply.sources
        assert (one.name, one.topic, one.state, one.since, one.why, one.advice, one.next_poll) == (
            "default",
            "topic",
            "reading",
            "2020",
            "why",
            "advice",
            "2021",
        )
        assert (dict(one.next), dict(one.settings), list(one.changed)) == (
            {0: 7},
            {"watermarkDelay": "1h"},
            ["watermarkDelay"],
        )
        assert one.HasField("waiting")
        assert (one.late.records, one.late.most, one.late.proposed_delay) == (2, "1m1s", "2m")
        assert one.future == wire.FutureRecords(records=3, offset=7, time="1970-01-01T00:00:00Z")
    assert changes == [("default", {"watermarkDelay": "1h"})]
    settings.max_future = UNLIMITED  # then such times are meant
    (one,) = servicer.ShowSources(wire.SourceRequest(ref="cities"), ACTIVE).sources
    assert not one.HasField("future")


def test_a_source_is_resumed_and_a_message_skipped(servicer: Any, bench: Any) -> None:
    asked: list[object] = []

    def resume(entry: CatalogEntry, *options: str) -> object:
        asked.append((entry.dataset_id, *options))
        return SimpleNamespace(source="default", head=None, next={0: 7})

    servicer.commands.resume = resume
    request = wire.ResumeSourceRequest(ref="cities", source_name="default", start="latest", topic="topic")
    reply = servicer.ResumeSource(request, ACTIVE)
    assert (reply.source_name, reply.head, dict(reply.next)) == ("default", "", {0: 7})
    assert asked == [(bench.dataset, "default", "latest", "topic")]

    skipped: list[tuple[int, int] | None] = [None, (0, 0), (2, 9)]
    servicer.commands.skip = lambda *_: SimpleNamespace(
        source="default", topic="topic", skipped=skipped.pop(0)
    )
    replies = [servicer.SkipMessage(wire.SourceRequest(ref="cities"), ACTIVE) for _ in range(3)]
    assert [one.skipped for one in replies] == [False, True, True]
    assert [(one.topic, one.partition, one.offset) for one in replies] == [
        ("", 0, 0),
        ("topic", 0, 0),
        ("topic", 2, 9),
    ]
    assert {one.source_name for one in replies} == {"default"}


def test_a_file_of_a_polling_source_is_skipped(servicer: Any, bench: Any) -> None:
    polled: list[bool] = []

    def poll(dataset: object, report: object, is_wanted: object, *, skips: bool) -> PollSummary:
        polled.append(skips and dataset == bench.dataset and is_wanted == ACTIVE.is_active)
        return PollSummary(skipped="a.csv: has no header" if len(polled) == 1 else "")

    servicer.poller = SimpleNamespace(poll=poll)
    servicer.queues = SimpleNamespace(state=lambda _: a_chain(a_seed(), a_polling_source()).state)
    replies = [servicer.SkipMessage(wire.SourceRequest(ref="cities"), ACTIVE) for _ in range(2)]
    assert [(one.skipped, one.file) for one in replies] == [(True, "a.csv: has no header"), (False, "")]
    assert polled == [True, True]


def test_a_sample_shows_columns_and_how_far_its_times_are_out_of_order(servicer: Any, tmp_path: Path) -> None:
    later = ROW.replace("2020", "2021")
    request = wire.SampleRequest(staged=staged(tmp_path, later + ROW), input_format="ndjson")
    reply = servicer.Sample(request, ACTIVE)
    assert reply.records == 2
    assert pa.ipc.read_schema(pa.py_buffer(reply.schema)).names == ["id", "v", "event_time"]
    assert {name: one.records for name, one in reply.late.items()} == {"event_time": 1}
