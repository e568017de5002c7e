"""What each RPC of the coordinator does and returns, without a server."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import grpc
import pyarrow as pa
import pytest
from odf_testing.actors import VirtualTime
from odf_testing.builders import a_dataset
from odf_testing.coordinator import Coordinator

from odf_common.adapters.grpc.client import ServiceUnreachable
from odf_common.codec.flatbuffers import decode_event, encode_event
from odf_common.codec.times import time_message
from odf_common.errors import DatasetInUse, HeadMoved, InvalidInput, InvalidQuery
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SetInfo, SetPollingSource, SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress
from odf_common.ports.store import DatasetUnknown, ObjectKind
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1.ingest_pb2 import PollProgress, PollRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestServicer, add_IngestServicer_to_server
from odf_coordinator.api.grpc_servicer import Servicer, _pull_item
from odf_coordinator.operations.ingest_client import IngestClient
from odf_coordinator.operations.pull import PullProgress
from odf_coordinator.operations.read import ipc_chunks

CONTEXT = cast("grpc.ServicerContext", SimpleNamespace(is_active=lambda: True))
INFO = SetInfo(description="cities of the world")


@pytest.fixture
def servicer(node: Coordinator, root: str, derivative: str) -> Servicer:
    """A root with two slices, and a derivative that has read them."""
    node.add(root, derivative)
    for minute, city in enumerate(("Oslo", "Rome")):
        node.push("cities", city, minute=minute)
    node.work()
    return Servicer(node.parts)


def cities(messages: object) -> list[str]:
    stream = b"".join(one.ipc for one in cast("list[wire.ArrowBytes]", messages))
    found: list[str] = pa.ipc.open_stream(stream).read_all()["city"].to_pylist()
    return found


def test_blocks_come_newest_first_up_to_a_limit_and_signed_on_demand(
    servicer: Servicer, node: Coordinator
) -> None:
    known = node.find("cities")

    def log(**options: object) -> list[wire.BlockItem]:
        return list(servicer.Log(wire.LogRequest(ref="cities", **options), CONTEXT))  # type: ignore[arg-type]

    everything = log()
    assert everything[0].hash == str(known.state.head)
    assert len(everything) == known.state.sequence_number + 1
    assert [one.content for one in everything] == [
        node.datasets.reader(known.id)(name) for name in (type(known.state.head).parse(one.hash) for one in everything)
    ]  # fmt: skip
    assert log(limit=1) == everything[:1]
    assert log(limit=2) == everything[:2]
    assert log(limit=2**64 - 1) == everything
    assert not any(one.HasField("signature") for one in everything)
    node.blobs.put(known.id, ObjectKind.SIGNATURE, known.state.head, b"signed")
    signed = log(with_signatures=True)
    assert [one.signature for one in signed] == [b"signed", *[b""] * (len(everything) - 1)]
    assert [one.HasField("signature") for one in signed] == [True, *[False] * (len(everything) - 1)]
    assert log() == everything


def test_a_summary_counts_blocks_records_and_bytes_and_names_inputs(
    servicer: Servicer, node: Coordinator
) -> None:
    listed = {one.alias: one for one in servicer.List(wire.ListRequest(), CONTEXT).datasets}
    inputs = {"cities": [], "cities.copy": [str(node.find("cities").id)]}
    assert listed.keys() == inputs.keys()
    for ref, of_ref in inputs.items():
        known = node.find(ref)
        found = servicer.Describe(wire.DescribeRequest(ref=ref), CONTEXT)
        assert (found.alias, found.dataset_id, found.head) == (ref, str(known.id), str(known.state.head))
        assert found.blocks == len(list(servicer.Log(wire.LogRequest(ref=ref), CONTEXT)))
        assert (found.records, list(found.inputs)) == (2, of_ref)
        data = node.blobs.names(known.id, ObjectKind.DATA)
        assert found.data_size == sum(node.blobs.size(known.id, ObjectKind.DATA, name) for name in data) > 0
        assert (found.problem, found.dropped, found.late, found.rejected) == ("", False, 0, 0)
        found.data_size = 0
        assert listed[ref] == found, "a listing opens no data"


def test_the_event_in_force_is_returned_by_its_kind(servicer: Servicer, node: Coordinator) -> None:
    def last(ref: str, kind: str) -> wire.LastEventReply:
        return servicer.LastEvent(wire.LastEventRequest(ref=ref, kind=kind), CONTEXT)

    assert last("cities", SetInfo.__name__).event == b""
    servicer.CommitEvent(wire.CommitEventRequest(ref="cities", event=encode_event(INFO)), CONTEXT)
    reply = last("CITIES", SetInfo.__name__)
    assert decode_event(reply.event) == INFO
    assert (reply.alias, reply.dataset_id, reply.kind) == ("cities", str(node.find("cities").id), "Root")
    reply = last("cities.copy", SetTransform.__name__)
    assert isinstance(decode_event(reply.event), SetTransform)
    assert reply.kind == "Derivative"
    assert last("cities.copy", SetPollingSource.__name__).event == b""
    with pytest.raises(InvalidInput, match=r"expected one of .*SetInfo.*, got 'SetNothing'"):
        last("cities", "SetNothing")


def test_records_and_results_of_queries_come_as_one_stream(servicer: Servicer) -> None:
    assert cities(servicer.Tail(wire.TailRequest(ref="cities", records=1), CONTEXT)) == ["Rome"]
    assert cities(servicer.Tail(wire.TailRequest(ref="cities.copy", records=9), CONTEXT)) == ["Oslo", "Rome"]
    query = wire.SqlRequest(sql="SELECT * FROM cities")
    assert cities(servicer.Query(query, CONTEXT)) == ["Oslo", "Rome"]


@pytest.mark.parametrize("rows", [0, 1, 500_000])
def test_a_stream_of_any_length_comes_in_pieces_that_fit_into_a_message(rows: int) -> None:
    table = pa.table({"n": pa.array(range(rows), pa.int64())})
    pieces = list(ipc_chunks(table))
    assert all(0 < len(piece) <= 1 << 20 for piece in pieces)
    assert len(pieces) == max(-(-rows * 8 // (1 << 20)), 1), "no more pieces than needed"
    stream = pa.ipc.open_stream(b"".join(pieces))
    assert stream.read_all().equals(table)


@pytest.mark.parametrize("sql", ["", " ;\n", "-- nothing", "/* of\nthat */;"])
def test_a_query_that_asks_for_nothing_is_refused(servicer: Servicer, sql: str) -> None:
    with pytest.raises(InvalidQuery, match="the query is empty"):
        servicer.Query(wire.SqlRequest(sql=sql), CONTEXT)


def test_a_query_needs_tables_with_columns_and_quoted_names(
    servicer: Servicer, node: Coordinator, root: str
) -> None:
    bare = root.replace("ddlSchema: [event_time TIMESTAMP, city STRING]", "").replace(", }", "}")
    node.add(bare.replace("name: cities", "name: towns"))
    for sql, error, why in (
        ("SELECT * FROM nowhere", DatasetUnknown, "dataset nowhere does not exist"),
        ("SELECT * FROM towns", InvalidQuery, "towns has no data yet"),
        ("SELECT * FROM cities.copy", InvalidQuery, "in backticks: `cities.copy`"),
    ):
        with pytest.raises(error, match=why):
            servicer.Query(wire.SqlRequest(sql=sql), CONTEXT)
    assert cities(servicer.Query(wire.SqlRequest(sql="SELECT * FROM `cities.copy`"), CONTEXT)) == ["Oslo", "Rome"]  # fmt: skip


def test_the_request_of_a_pull_decides_what_it_does(servicer: Servicer, node: Coordinator) -> None:
    def pulled(**options: object) -> dict[str, str]:
        request = wire.PullRequest(**options)  # type: ignore[arg-type]
        return {one.alias: one.state for one in servicer.Pull(request, CONTEXT)}

    def diverge() -> None:
        first, second = (one.hash for one in servicer.Log(wire.LogRequest(ref="cities", limit=2), CONTEXT))
        servicer.Reset(wire.ResetRequest(ref="cities", head=second, force=True), CONTEXT)
        assert first != second

    both = {"cities", "cities.copy"}
    with node.scheduler_running():
        assert pulled(refs=["cities"]) == {"cities": "up-to-date"}
        assert pulled(refs=["cities.copy"]).keys() == {"cities.copy"}
        assert pulled(refs=["cities.copy"], recursive=True).keys() == both
        assert pulled(all=True).keys() == both
        diverge()
        assert pulled(refs=["cities"]) == {"cities": "up-to-date"}, "nothing is rolled back"
        assert pulled(refs=["cities"], reset_derivatives=True) == {
            "cities": "up-to-date",
            "cities.copy": "updated",
        }
        assert node.record_reader.tail("cities.copy", 9)["city"].to_pylist() == ["Oslo"]
        node.push("cities", "Lima", minute=3)
        assert pulled(refs=["cities.copy"]) == {"cities.copy": "updated"}
        diverge()
        assert pulled(all=True, refs=["cities"], reset_derivatives=True).keys() == {"cities.copy"}
        assert node.record_reader.tail("cities.copy", 9)["city"].to_pylist() == ["Oslo"]


def test_a_watermark_is_set_on_datasets_by_name_only(servicer: Servicer, node: Coordinator) -> None:
    late = time_message(Timestamp.from_ms(60 * 60_000))
    for options in (
        {"all": True},
        {},
        {"refs": ["cit%"]},
        {"refs": ["cities", "cit%"]},
        {"refs": ["cities"], "all": True},
    ):
        with pytest.raises(InvalidInput, match="by name, not by pattern or --all"):
            servicer.Pull(wire.PullRequest(set_watermark=late, **options), CONTEXT)
    (item,) = servicer.Pull(wire.PullRequest(set_watermark=late, refs=["cities"]), CONTEXT)
    assert (item.state, item.new_blocks) == ("updated", 1)
    assert node.find("cities").state.watermark == Timestamp.from_ms(60 * 60_000)


def test_datasets_are_changed_and_returned_as_changed(servicer: Servicer, node: Coordinator) -> None:
    first = str(node.find("cities").state.head)
    described = servicer.Describe(wire.DescribeRequest(ref="cities"), CONTEXT)
    assert described.data_size > 0
    renamed = servicer.Rename(wire.RenameRequest(ref="cities", new_alias="towns"), CONTEXT)
    assert (renamed.alias, renamed.head, renamed.data_size) == ("towns", first, 0)
    event = wire.CommitEventRequest(ref="towns", event=encode_event(INFO))
    changed = servicer.CommitEvent(event, CONTEXT)
    assert changed.blocks == renamed.blocks + 1
    reset = servicer.Reset(wire.ResetRequest(ref="towns", head=first), CONTEXT)
    assert (reset.head, reset.blocks) == (first, renamed.blocks)
    dropped = servicer.DropData(wire.DropDataRequest(ref="cities.copy"), CONTEXT)
    assert (dropped.alias, dropped.slices, dropped.checkpoints) == ("cities.copy", 1, 1)
    assert dropped.size > 0
    listed = {one.alias: one.dropped for one in servicer.List(wire.ListRequest(), CONTEXT).datasets}
    assert listed == {"towns": False, "cities.copy": True}
    with pytest.raises(DatasetInUse, match="read by"):
        servicer.Delete(wire.DeleteRequest(ref="towns"), CONTEXT)
    assert servicer.Delete(wire.DeleteRequest(ref="cities.copy"), CONTEXT) == wire.DeleteReply()
    assert [one.alias for one in servicer.List(wire.ListRequest(), CONTEXT).datasets] == ["towns"]


def test_an_input_that_was_read_is_reset_by_force_only(servicer: Servicer, node: Coordinator) -> None:
    first = next(one for one in servicer.Log(wire.LogRequest(ref="cities"), CONTEXT) if one.hash != str(node.find("cities").state.head))  # fmt: skip
    with pytest.raises(DatasetInUse, match="--force"):
        servicer.Reset(wire.ResetRequest(ref="cities", head=first.hash), CONTEXT)
    assert servicer.Reset(wire.ResetRequest(ref="cities", head=first.hash, force=True), CONTEXT).head == first.hash  # fmt: skip


def test_references_are_set_compared_and_removed_if_they_are_where_they_are_expected(
    servicer: Servicer, node: Coordinator
) -> None:
    head = str(node.find("cities").state.head)
    blocks = [one.hash for one in servicer.Log(wire.LogRequest(ref="cities"), CONTEXT)]
    item = servicer.SetRef(wire.SetRefRequest(ref="cities@old", block=blocks[1], expected=""), CONTEXT)
    assert (item.name, item.block) == ("old", blocks[1])
    with pytest.raises(HeadMoved):
        servicer.SetRef(wire.SetRefRequest(ref="cities@old", block=head, expected=""), CONTEXT)
    listed = servicer.ListRefs(wire.ListRefsRequest(ref="cities"), CONTEXT).refs
    assert {one.name: one.block for one in listed} == {"head": head, "old": blocks[1]}
    compared = servicer.Compare(wire.CompareRequest(left="cities", right="cities@old"), CONTEXT)
    assert (compared.relation, compared.left, compared.right) == ("ahead", 1, 0)
    assert compared.common == blocks[1]
    servicer.SetRef(wire.SetRefRequest(ref="cities@old", block=head), CONTEXT)
    assert servicer.FastForward(wire.FastForwardRequest(ref="cities@old"), CONTEXT).head == head
    with pytest.raises(HeadMoved):
        servicer.DeleteRef(wire.DeleteRefRequest(ref="cities@old", expected=blocks[1]), CONTEXT)
    assert servicer.DeleteRef(wire.DeleteRefRequest(ref="cities@old", expected=head), CONTEXT) == wire.DeleteRefReply()  # fmt: skip
    assert len(servicer.ListRefs(wire.ListRefsRequest(ref="cities"), CONTEXT).refs) == 1


def test_manifests_are_added_and_replaced(servicer: Servicer, node: Coordinator, root: str) -> None:
    def add(text: str, *, replace: bool = False) -> list[tuple[str, str]]:
        manifest = wire.AddRequest.Manifest(name="m.yaml", text=text.encode())
        reply = servicer.Add(wire.AddRequest(manifests=[manifest], replace=replace), CONTEXT)
        assert all(DatasetId.parse(one.dataset_id) == node.find(one.alias).id for one in reply.results)
        assert all(one.head == str(node.find(one.alias).state.head) for one in reply.results)
        return [(one.alias, one.outcome) for one in reply.results]

    assert add(root) == [("cities", "unchanged")]
    assert add(root.replace("name: cities", "name: towns")) == [("towns", "added")]
    longer = root.replace("name: cities", "name: towns") + "    - {kind: SetInfo, description: more}\n"
    assert add(longer, replace=True) == [("towns", "replaced")]


def test_a_step_of_a_pull_has_either_the_progress_or_the_outcome() -> None:
    progress = EngineProgress(stage="sorting", rows=2, total=5, late=3)
    item = _pull_item(PullProgress(alias="a", state="running", progress=progress, new_late=9))
    assert (item.stage, item.rows, item.total, item.late) == ("sorting", 2, 5, 3)
    item = _pull_item(PullProgress(alias="a", state="updated", new_blocks=1, new_records=2, new_late=9))
    assert (item.stage, item.rows, item.new_blocks, item.new_records, item.late) == ("", 0, 1, 2, 9)
    assert (item.head, item.error) == ("", "")


def test_an_unreachable_ingest_is_waited_for_once_and_not_for_each_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualTime(monkeypatch)
    began = clock.now
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = IngestClient("127.0.0.1:{1}".format(*unused.getsockname()), timeout=0.2)
        ends = []
        for _ in range(2):
            with pytest.raises(ServiceUnreachable, match="ingest cannot be reached: no server answers"):
                list(client.drain(a_dataset()))
            ends.append(clock.now)
    assert ends[0] >= began + 0.2
    assert ends[1] == ends[0]


class Ingest(IngestServicer):
    """Answers polls, and notes on which connections."""

    def __init__(self) -> None:
        self.peers: list[str] = []
        self.left = threading.Event()

    def Poll(self, request: PollRequest, context: grpc.ServicerContext) -> Iterator[PollProgress]:
        self.peers.append(context.peer())
        context.add_callback(self.left.set)
        yield PollProgress(stage="one")
        yield PollProgress(done=True)


@contextmanager
def serving(ingest: Ingest, port: int = 0) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_IngestServicer_to_server(ingest, server)
    chosen = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield chosen
    finally:
        server.stop(None).wait()


def test_calls_share_a_connection_and_open_another_after_a_restart() -> None:
    ingest = Ingest()
    with serving(ingest) as port:
        client = IngestClient(f"127.0.0.1:{port}")
        for _ in range(3):
            assert list(client.poll(a_dataset())) == ["one", ""]
    with serving(ingest, port):
        assert list(client.poll(a_dataset())) == ["one", ""]
    first, second, third, restarted = ingest.peers
    assert first == second == third != restarted


def test_an_ingest_that_is_back_is_reached_whatever_failed_before() -> None:
    """Channels would share the pause after failed attempts to connect."""
    ingest = Ingest()
    with serving(ingest) as port:
        client = IngestClient(f"127.0.0.1:{port}", timeout=0)
        assert list(client.poll(a_dataset())) == ["one", ""]
    for _ in range(5):
        with pytest.raises(ServiceUnreachable):
            list(client.poll(a_dataset()))
        time.sleep(0.15)
    with serving(ingest, port):
        assert list(client.poll(a_dataset())) == ["one", ""]


def test_a_caller_who_leaves_cancels_the_call() -> None:
    ingest = Ingest()
    with serving(ingest) as port:
        client = IngestClient(f"127.0.0.1:{port}")
        for _ in range(2):  # on a new connection, and on a kept one
            ingest.left.clear()
            progress = client.poll(a_dataset())
            assert next(progress) == "one"
            progress.close()
            assert ingest.left.wait(10)
            assert list(client.poll(a_dataset())) == ["one", ""]
