import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from odf_common.adapters.grpc.calls import Bulkheads, Busy
from odf_common.adapters.grpc.client import RemoteUnavailable, calling, channel
from odf_common.adapters.grpc.server import serve
from odf_common.proto.odf.node.v1 import ingest_pb2 as pb
from odf_common.proto.odf.node.v1 import ingest_pb2_grpc


class Stuck(ingest_pb2_grpc.IngestServicer):
    """Calls for the dataset `stuck` are answered once `freed` is set, all others at once."""

    def __init__(self) -> None:
        self.freed = threading.Event()
        self.waiting = threading.Semaphore(0)

    def Push(self, request_iterator: Iterator[pb.PushPart], context: grpc.ServicerContext) -> pb.PushReply:  # noqa: N802
        parts = list(request_iterator)
        self._wait(parts[0].header.ref)
        return pb.PushReply(records=len(parts))

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> Iterator[pb.DrainProgress]:  # noqa: N802
        self._wait(request.ref)
        yield pb.DrainProgress(done=True)

    def Stuck(self, request: pb.StuckRequest, context: grpc.ServicerContext) -> pb.StuckReply:  # noqa: N802
        return pb.StuckReply()

    def _wait(self, ref: str) -> None:
        if ref == "stuck":
            self.waiting.release()
            self.freed.wait(30)


@pytest.fixture
def stuck() -> Iterator[tuple[Stuck, ingest_pb2_grpc.IngestStub]]:
    servicer = Stuck()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(servicer, server)
        return ("odf.node.v1.Ingest",)

    server = serve("127.0.0.1:0", register, bulkheads=Bulkheads(calls=6, calls_of_one=3, timeout=0.05))
    with channel(f"127.0.0.1:{server.port}") as open_channel:
        yield servicer, ingest_pb2_grpc.IngestStub(open_channel)
        servicer.freed.set()
    server.stop(1)


def test_calls_that_wait_for_one_dataset_delay_neither_others_nor_other_methods(
    stuck: tuple[Stuck, ingest_pb2_grpc.IngestStub],
) -> None:
    servicer, stub = stuck
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(list, stub.Drain(pb.DrainRequest(ref="stuck"), timeout=30)) for _ in range(3)]
        for _ in waiting:
            servicer.waiting.acquire(timeout=10)

        too_many = r"Drain of stuck cannot be reached: 3 such calls are in flight"
        with pytest.raises(RemoteUnavailable, match=too_many), calling("ingest"):
            list(stub.Drain(pb.DrainRequest(ref="Stuck"), timeout=5))
        assert [one.done for one in stub.Drain(pb.DrainRequest(ref="other"), timeout=30)] == [True]
        assert stub.Stuck(pb.StuckRequest(), timeout=30) == pb.StuckReply()

        servicer.freed.set()
        assert all(one.result()[-1].done for one in waiting)
    assert [one.done for one in stub.Drain(pb.DrainRequest(ref="stuck"), timeout=30)] == [True]


def test_a_stream_is_counted_for_the_dataset_of_its_header_and_arrives_whole(
    stuck: tuple[Stuck, ingest_pb2_grpc.IngestStub],
) -> None:
    servicer, stub = stuck

    def parts(ref: str) -> Iterator[pb.PushPart]:
        yield pb.PushPart(header=pb.PushHeader(ref=ref))
        yield pb.PushPart(content=b"x")

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(stub.Push, parts("stuck"), timeout=30) for _ in range(3)]
        for _ in waiting:
            servicer.waiting.acquire(timeout=10)

        with pytest.raises(RemoteUnavailable, match="Push of stuck"), calling("ingest"):
            stub.Push(parts("stuck"), timeout=30)
        assert stub.Push(parts("other"), timeout=30).records == 2

        servicer.freed.set()
        assert [one.result().records for one in waiting] == [2, 2, 2]


def test_many_datasets_take_no_more_than_the_method_has_and_nothing_is_kept_of_them() -> None:
    limits = Bulkheads(calls=1, calls_of_one=1, timeout=0)
    with limits.method("/a/Pull"), limits.dataset("/a/Pull", "x"):
        with pytest.raises(Busy, match="Pull cannot be reached: 1 such calls"), limits.method("/a/Pull"):
            pass
        with limits.method("/a/List"):
            assert len(limits) == 3
    assert len(limits) == 0
