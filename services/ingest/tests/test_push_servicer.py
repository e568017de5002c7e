"""RPCs about accepted pushes, and streams of Arrow batches over a real gRPC connection."""

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pyarrow as pa
import pytest
from odf_testing.builders import a_dataset, a_derivative
from odf_testing.memory_store import MemoryCatalog

from odf_common.adapters.grpc.client import channel, error_of
from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.key_files import NotOwned, require_owned
from odf_common.adapters.local.process_files import Staging
from odf_common.codec.envelopes import Body, envelope
from odf_common.codec.times import time_message, time_of
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import COORDINATOR_REPLIES, INGEST_COMMANDS, NOTIFICATIONS
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1 import push_pb2
from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_common.proto.odf.node.v1.push_pb2_grpc import PushStub
from odf_common.service.request_reply import Replies
from odf_ingest.accepted_pushes import Receipt, id_of
from odf_ingest.api import arrow_streams
from odf_ingest.api.arrow_streams import ArrowStreams
from odf_ingest.api.bus_handlers import Notices, subscriptions
from odf_ingest.api.lookup import PushTargets
from odf_ingest.api.push_servicer import MAX_WAIT_SECONDS, PushServicer
from odf_ingest.commit.file_commit import FileCommit, digest_of

ROW = '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n'
OTHER = a_dataset("other")
TIME = Timestamp.from_ms(1_600_000_000_000)
ACTIVE = cast("grpc.ServicerContext", SimpleNamespace(is_active=lambda: True))


@pytest.fixture
def bench(make_bench: Any) -> Any:
    return make_bench()


def staged(tmp_path: Path, text: str) -> str:
    file = Staging(tmp_path).path("file-1")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file.name


class Accepted:
    """Keeps receipts; waiting for one returns `settled`."""

    def __init__(self) -> None:
        self.receipts = self
        self.woken: list[object] = []
        self.stored: list[Receipt] = []
        self.waited: list[tuple[str, float]] = []

    def accept(self, dataset: object, receipt: Receipt, file: Path) -> Receipt:
        del dataset
        assert digest_of(file) == receipt.digest
        self.stored.append(receipt)
        return receipt

    def wake(self, dataset: object) -> None:
        self.woken.append(dataset)

    def await_settled(self, dataset: object, receipt: str, seconds: float, _: object) -> Receipt | None:
        del dataset
        self.waited.append((receipt, seconds))
        return next((one for one in self.stored if one.id == receipt), None)


@pytest.fixture
def pushes(bench: Any, tmp_path: Path) -> PushServicer:
    catalog = MemoryCatalog()
    catalog.add(CatalogEntry(alias="cities", dataset_id=bench.dataset))
    key = key_file(tmp_path, bench.dataset)
    key.parent.mkdir()
    key.touch()
    return PushServicer(
        catalog=catalog,
        queues=bench.queues,
        accepted=cast("Any", Accepted()),
        staging=Staging(tmp_path),
        clock=bench.clock,
        streams=cast("Any", None),
        targets=PushTargets(catalog=catalog, require_owned=partial(require_owned, key.parent, catalog)),
        sources=cast("Any", None),
    )


def key_file(home: Path, dataset: DatasetId) -> Path:
    return home / "keys" / dataset.folder


def test_the_target_of_a_push_is_checked_before_it_is_sent(pushes: PushServicer, bench: Any) -> None:
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k")
    target = pushes.Check(request, ACTIVE)
    assert (target.dataset_id, target.source_name) == (str(bench.dataset), "default")
    odd: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
        ({"ref": "nowhere"}, NotFound, "nowhere"),
        ({"idempotency_key": ""}, InvalidInput, "1 to 200 printable"),
        ({"idempotency_key": "k" * 201}, InvalidInput, "1 to 200 printable"),
        ({"idempotency_key": "k\n"}, InvalidInput, "1 to 200 printable"),
        ({"idempotency_key": "ü"}, InvalidInput, "1 to 200 printable"),
        ({"source_name": "another"}, InvalidInput, "another"),
        ({"input_format": "nothing"}, Exception, "nothing"),
    )
    for change, error, why in odd:
        with pytest.raises(error, match=why):
            pushes.Check(push_pb2.PushRequest(**{"ref": "cities", "idempotency_key": "k", **change}), ACTIVE)
    assert pushes.Check(push_pb2.PushRequest(ref="cities", idempotency_key="k" * 200), ACTIVE) == target


def test_a_push_to_a_copy_is_not_accepted(pushes: PushServicer, bench: Any, tmp_path: Path) -> None:
    key_file(tmp_path, bench.dataset).unlink()
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k", staged=staged(tmp_path, ROW))
    for call in (pushes.Check, pushes.Accept):
        with pytest.raises(NotOwned, match="cities is a copy"):
            call(request, ACTIVE)
    assert cast("Accepted", pushes.accepted).stored == []


def test_a_push_to_a_derivative_is_not_accepted(
    pushes: PushServicer, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = a_derivative(bench.dataset).state
    monkeypatch.setattr(bench.queues, "state", lambda _: state)
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k", staged=staged(tmp_path, ROW))
    for call in (pushes.Check, pushes.Accept):
        with pytest.raises(InvalidInput, match="a derivative takes no pushed data"):
            call(request, ACTIVE)
    assert cast("Accepted", pushes.accepted).stored == []


def test_a_push_is_accepted_with_a_receipt_and_its_commit_begun(
    pushes: PushServicer, bench: Any, tmp_path: Path
) -> None:
    accepted = cast("Accepted", pushes.accepted)
    request = push_pb2.PushRequest(
        ref="cities",
        idempotency_key="k",
        staged=staged(tmp_path, ROW),
        input_format="ndjson",
        is_key_generated=True,
    )
    reply = pushes.Accept(request, ACTIVE)
    (stored,) = accepted.stored
    assert (stored.source, stored.key, stored.is_key_generated) == ("default", "k", True)
    assert (stored.input_format, stored.size, stored.accepted_at) == ("ndjson", len(ROW), bench.clock.ms)
    assert stored.event_time == str(Timestamp.from_ms(bench.clock.ms))
    assert (reply.id, reply.size, reply.source_name) == (
        id_of(bench.dataset, "default", "k"),
        len(ROW),
        "default",
    )
    assert time_of(reply.accepted_at).ms == bench.clock.ms
    assert accepted.woken == [bench.dataset]
    request.event_time.CopyFrom(time_message(TIME))
    pushes.Accept(request, ACTIVE)
    assert accepted.stored[-1].event_time == str(TIME)


def test_a_receipt_is_waited_for_up_to_a_minute(pushes: PushServicer, tmp_path: Path) -> None:
    accepted = cast("Accepted", pushes.accepted)
    request = push_pb2.PushRequest(ref="cities", idempotency_key="k", staged=staged(tmp_path, ROW))
    id_ = pushes.Accept(request, ACTIVE).id
    for ms in (0, 1500, 10**9):
        assert pushes.Show(push_pb2.ShowPushRequest(ref="cities", receipt=id_, wait_ms=ms), ACTIVE).id == id_
    assert accepted.waited == [(id_, 0.0), (id_, 1.5), (id_, MAX_WAIT_SECONDS)]
    with pytest.raises(NotFound, match="receipt x of cities"):
        pushes.Show(push_pb2.ShowPushRequest(ref="cities", receipt="x"), ACTIVE)


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (bus.Committed(head=b"foreign", alias="cities"), [("look", OTHER, "cities")]),
        (bus.Committed(head=b"own", alias="cities"), []),
        (bus.Committed(head=b"foreign", is_derivative=True), []),
        (bus.DatasetRemoved(), [("removed", OTHER)]),
        (bus.TransformProgress(), []),
    ],
)
def test_a_change_by_another_process_is_handled_on_the_readers_thread(
    body: Body, calls: list[object]
) -> None:
    called: list[object] = []
    requested: list[Any] = []
    owned = SimpleNamespace(
        inspect=lambda *one: called.append(("look", *one)),
        remove=lambda one: called.append(("removed", one)),
        own=lambda one: called.append(("own", one)),
    )
    notices = Notices(
        cast("Any", SimpleNamespace(request=requested.append)),
        cast("Any", owned),
        cast("Any", SimpleNamespace(is_own=lambda dataset, head: (dataset, head) == (OTHER, b"own"))),
        lambda: called.append("assigned"),
    )
    assert notices.on_notification(envelope(OTHER, body)) == ()
    assert called == []
    for action in requested:
        action()
    assert called == calls
    notices.on_assigned(frozenset({3}))
    requested[-1]()
    assert called[-2:] == [("own", frozenset({3})), "assigned"]


def test_changes_are_received_by_each_instance_and_commands_by_the_owner(bench: Any) -> None:
    notices = Notices(cast("Any", None), cast("Any", None), bench.queues)
    commands = cast("Any", SimpleNamespace(handle=None))
    found = {one.topic: one for one in subscriptions(notices, commands, Replies(bench.coordinator))}
    assert found.keys() == {COORDINATOR_REPLIES, NOTIFICATIONS, INGEST_COMMANDS}
    assert {topic for topic, one in found.items() if one.group} == {INGEST_COMMANDS}
    assert found[INGEST_COMMANDS].threads > 1
    assert found[INGEST_COMMANDS].on_assigned == notices.on_assigned


AT = "2026-01-02T00:00:00Z"


def arrow(*ids: int, **columns: Any) -> bytes:
    times = pa.nulls(len(ids), pa.int64()).fill_null(0).cast(pa.timestamp("ms", "UTC"))
    table = pa.table({"id": pa.array(ids, pa.int64()), "event_time": times} | columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def batch(sequence: int, raw: bytes) -> pb.StreamPart:
    return pb.StreamPart(batch=pb.StreamBatch(sequence=sequence, arrow=raw))


class Client:
    """A dataset, and a connection to push into it."""

    def __init__(self, bench: Any, stub: PushStub) -> None:
        self.bench = bench
        self.stub = stub

    def push(self, *parts: pb.StreamPart, **header: Any) -> Iterator[pb.StreamAck]:
        """Yield the acknowledgements of a stream; raises our errors."""
        begin = pb.StreamPart(header=pb.StreamHeader(**{"ref": "orders", "stream_id": "s", **header}))
        try:
            yield from self.stub.Stream(iter((begin, *parts)), timeout=30)
        except grpc.RpcError as error:
            raise error_of(error, "ingest") from error


@pytest.fixture
def make_client(make_bench: Any, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    closing: list[Callable[[], object]] = []

    def make(*args: Any, require_owned: Callable[[DatasetId], None] = lambda _: None) -> Client:
        bench = make_bench(*args)
        entry = CatalogEntry(alias="orders", dataset_id=bench.dataset)
        catalog: Any = SimpleNamespace(
            by_alias=lambda name: entry if name == "orders" else None, entries=lambda: (entry,)
        )
        targets = PushTargets(catalog=catalog, require_owned=require_owned)
        streams = ArrowStreams(
            targets=targets,
            queues=bench.queues,
            preparer=bench.preparer,
            rejecting=bench.rejecting,
            clock=bench.clock,
            scratch=bench.blobs.scratch,
        )
        servicer = PushServicer(
            catalog=catalog,
            queues=bench.queues,
            accepted=cast("Any", None),
            staging=cast("Any", None),
            clock=bench.clock,
            streams=streams,
            targets=targets,
            sources=cast("Any", None),
        )
        server = serve("127.0.0.1:0", servicer.register)
        connection = channel(f"127.0.0.1:{server.port}")
        closing.extend((connection.close, lambda: server.stop(0)))
        return Client(bench, PushStub(connection))

    yield make
    for close in closing:
        close()


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()


def test_bad_rows_of_a_batch_are_left_out_and_counted_once(client: Client) -> None:
    times = pa.array([0, None, 0], pa.timestamp("ms", "UTC"))
    parts = (batch(0, arrow(1, 2, 3, event_time=times)), batch(1, arrow(4)))
    _, first, second = client.push(*parts)
    why = "row 2: column event_time: null is not allowed; a value of TIMESTAMP(3) is required"
    assert (first.records, first.rejected, first.rejected_reason) == (2, 1, why)
    assert (second.records, second.rejected, second.rejected_reason) == (1, 0, "")
    _, again, _ = client.push(*parts)
    assert (again.next, again.rejected) == (2, 0)
    assert client.bench.values("id") == [(1,), (3,), (4,)]
    assert [one.reason for one in client.bench.coordinator.letters] == [f"batch 0 of stream s, {why}"]


def test_each_batch_is_a_block_and_is_acknowledged_once_it_is_committed(client: Client) -> None:
    without = {"event_time": pa.nulls(2, pa.timestamp("ms", "UTC"))}
    with pytest.raises(InvalidInput, match="batch 0: row 1: column event_time: null is not allowed"):
        list(client.push(batch(0, arrow(1, 2, **without)), stream_id="other"))
    first, *acks = client.push(
        batch(0, arrow(1, 2, **without)),
        batch(1, arrow(3, event_time=without["event_time"][:1])),
        event_time=time_message(Timestamp.parse(AT)),
    )
    assert (first.next, first.stream_id) == (0, "s")
    assert first.max_batch_bytes == arrow_streams.MAX_ARROW_BATCH_BYTES
    assert [(ack.next, ack.records) for ack in acks] == [(1, 2), (2, 1)]
    assert acks[-1].head == str(client.bench.state.head)
    assert client.bench.values("id", "event_time") == [
        (id_, Timestamp.parse(AT).datetime()) for id_ in (1, 2, 3)
    ]


def test_an_acknowledgement_comes_before_the_next_batch_is_sent(client: Client) -> None:
    parts: SimpleQueue[pb.StreamPart | None] = SimpleQueue()
    parts.put(pb.StreamPart(header=pb.StreamHeader(ref="orders")))
    acks = client.stub.Stream(iter(parts.get, None), timeout=30)
    assert len(next(acks).stream_id) == 32, "an id was given"
    for number in range(3):
        parts.put(batch(number, arrow(number)))
        assert next(acks).next == number + 1
        assert len(client.bench.rows()) == number + 1
    parts.put(None)
    assert list(acks) == []


def test_an_interrupted_stream_resumes_and_repeats_add_nothing(client: Client) -> None:
    list(client.push(batch(0, arrow(1)), batch(1, arrow(2))))
    first, *acks = client.push(batch(0, arrow(1)), batch(1, arrow(2)), batch(2, arrow(3)))
    assert first.next == 2
    assert [(ack.next, ack.records) for ack in acks] == [(2, 0), (2, 0), (3, 1)]
    assert client.bench.values("id") == [(1,), (2,), (3,)]
    assert next(client.push(stream_id="other")).next == 0


def test_a_kill_after_the_commit_and_before_the_acknowledgement_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    commit = FileCommit.commit

    def killed(work: FileCommit, *args: Any) -> Any:
        commit(work, *args)
        raise Unavailable(what="ingest")

    with monkeypatch.context() as patch:
        patch.setattr(FileCommit, "commit", killed)
        with pytest.raises(Unavailable):
            list(client.push(batch(0, arrow(1))))
    assert [ack.next for ack in client.push(batch(0, arrow(1)), batch(1, arrow(2)))] == [1, 1, 2]
    assert client.bench.values("id") == [(1,), (2,)]


def test_a_stream_to_a_copy_is_refused_before_its_first_batch(make_client: Callable[..., Client]) -> None:
    def refuse(dataset: DatasetId) -> None:
        raise NotOwned(text=f"{dataset} is a copy")

    client = make_client(require_owned=refuse)
    with pytest.raises(OdfError, match="is a copy") as refused:
        next(client.push(batch(0, arrow(1))))
    assert refused.value.code == "NotOwned"
    assert client.bench.values("id") == []


def test_the_first_bad_batch_ends_the_stream_and_is_named(client: Client) -> None:
    seen = client.push(batch(0, arrow(1)), batch(1, b"junk"), batch(2, arrow(3)))
    assert [next(seen).next, next(seen).next] == [0, 1]
    with pytest.raises(
        InvalidInput, match=r"^batch 1: is not Arrow data.*not committed, nor was any after it$"
    ):
        next(seen)
    assert client.bench.values("id") == [(1,)]
    assert next(client.push()).next == 1


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([batch(1, b"")], "batch 1: batch 0 is next"),
        ([pb.StreamPart(header=pb.StreamHeader(ref="orders"))], "one header"),
        ([pb.StreamPart()], "one header"),
        ([batch(0, b"x" * 100)], "batch 0: has 100 bytes; send record batches of up to 99 bytes"),
    ],
)
def test_what_breaks_the_protocol_is_refused(
    make_client: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    parts: list[pb.StreamPart],
    words: str,
) -> None:
    monkeypatch.setattr(arrow_streams, "MAX_ARROW_BATCH_BYTES", 99)
    with pytest.raises(InvalidInput, match=words):
        list(make_client().push(*parts))


@pytest.mark.parametrize("parts", [[], [pb.StreamPart()], [batch(0, arrow(1))]])
def test_a_stream_without_its_header_is_refused(parts: list[pb.StreamPart], client: Client) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(client.stub.Stream(iter(parts), timeout=30))
    error = error_of(refused.value, "ingest")
    assert isinstance(error, InvalidInput)
    assert "must start with its header" in str(error)
    assert client.bench.rows() == []


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ({"ref": "none"}, NotFound),
        ({"source_name": "none"}, InvalidInput),
        ({"stream_id": "a\x1f0"}, InvalidInput),
        ({"stream_id": "x" * 201}, InvalidInput),
    ],
)
def test_a_header_that_names_nothing_is_refused(
    make_client: Callable[..., Client], header: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        list(make_client().push(**header))


def test_other_content_under_the_last_number_is_refused(client: Client) -> None:
    list(client.push(batch(0, arrow(1))))
    with pytest.raises(InvalidInput, match="other content was committed"):
        list(client.push(batch(0, arrow(2))))
    assert client.bench.values("id") == [(1,)]
