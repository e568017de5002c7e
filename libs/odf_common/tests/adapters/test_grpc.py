import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from odf_testing.killed_process import freeze

from odf_common.adapters.grpc import client as grpc_client
from odf_common.adapters.grpc.calls import Bulkheads, Busy
from odf_common.adapters.grpc.client import RemoteUnavailable, await_channel, calling, channel
from odf_common.adapters.grpc.server import GrpcServer, serve
from odf_common.errors import (
    AlreadyExists,
    ChainRuleViolated,
    Conflict,
    HeadMoved,
    InvalidInput,
    InvalidQuery,
    NotFound,
    OdfError,
    Refused,
    Unavailable,
    VerificationFailed,
)
from odf_common.proto.odf.node.v1 import ingest_pb2 as pb
from odf_common.proto.odf.node.v1 import ingest_pb2_grpc

NAME = "odf.node.v1.Ingest"


class Servicer(ingest_pb2_grpc.IngestServicer):
    def __init__(self) -> None:
        self.fault: Exception | None = None

    def Push(self, request_iterator: Iterator[pb.PushPart], context: grpc.ServicerContext) -> pb.PushReply:  # noqa: N802
        if self.fault is not None:
            raise self.fault
        return pb.PushReply(records=sum(len(part.content) for part in request_iterator))

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> Iterator[pb.DrainProgress]:  # noqa: N802
        yield pb.DrainProgress(waiting=1)
        if self.fault is not None:
            raise self.fault
        yield pb.DrainProgress(done=True)


Served = tuple[Servicer, ingest_pb2_grpc.IngestStub, GrpcServer]


@pytest.fixture
def served() -> Iterator[Served]:
    servicer = Servicer()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(servicer, server)
        return (NAME,)

    server = serve("127.0.0.1:0", register, is_ready=False)
    with channel(f"127.0.0.1:{server.port}") as open_channel:
        yield servicer, ingest_pb2_grpc.IngestStub(open_channel), server
    server.stop(0)


def test_a_call_during_the_shutdown_of_the_server_ends() -> None:
    """With gRPC's transparent retries some such calls never ended: one in fifty on a busy processor."""

    ended: list[grpc.StatusCode] = []

    def call_a_server_that_has_just_stopped(host: str) -> None:
        def register(server: grpc.Server) -> tuple[str, ...]:
            ingest_pb2_grpc.add_IngestServicer_to_server(Servicer(), server)
            return (NAME,)

        server = serve(f"{host}:0", register)
        with channel(f"{host}:{server.port}") as open_channel:
            stub = ingest_pb2_grpc.IngestStub(open_channel)
            assert len(list(stub.Drain(pb.DrainRequest()))) == 2
            server.stop(0)
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.Drain(pb.DrainRequest()))
        ended.append(refused.value.code())

    def call_many(network: int) -> None:
        # A host for each server: else another may get its port, and the channels of a process share a connection to the
        # same address, also one that was refused and is going to be retried.
        for host in range(1, 51):
            call_a_server_that_has_just_stopped(f"127.0.{network}.{host}")

    callers = [threading.Thread(target=call_many, args=(network,), daemon=True) for network in range(1, 7)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert ended == [grpc.StatusCode.UNAVAILABLE] * 300


class Advised(InvalidInput):
    """The input is not valid."""

    def advice(self) -> str:
        return "try “this” instead"


@pytest.mark.parametrize(
    ("fault", "family"),
    [
        (InvalidInput(text="bad"), InvalidInput),
        (InvalidQuery(text="no table"), InvalidQuery),
        (NotFound(what="dataset a"), NotFound),
        (AlreadyExists(what="dataset a"), AlreadyExists),
        (HeadMoved(dataset="a", expected=None, actual="f"), Conflict),
        (ChainRuleViolated(rule="r", text="bad"), Refused),
        (Refused(reason="R", text="no"), Refused),
        (VerificationFailed(), VerificationFailed),
        (Unavailable(what="Kafka", why="gone"), Unavailable),
    ],
)
def test_an_error_is_transmitted_with_its_family_and_message(
    served: Served, fault: OdfError, family: type[OdfError]
) -> None:
    servicer, stub, _ = served
    servicer.fault = fault
    with pytest.raises(family) as caught, calling("ingest"):
        stub.Push(iter([]), timeout=5)
    assert str(caught.value) == str(fault)
    assert caught.value.code in (fault.code, "R")


@pytest.mark.parametrize(
    ("fault", "family"),
    [
        (InvalidQuery(text="no table"), InvalidQuery),
        (HeadMoved(dataset="a", expected=None, actual="f"), Conflict),
    ],
)
def test_an_error_keeps_its_name_and_family_over_two_hops(
    served: Served, fault: OdfError, family: type[OdfError]
) -> None:
    servicer, stub, _ = served
    servicer.fault = fault
    with pytest.raises(OdfError) as near, calling("engine"):
        stub.Push(iter([]), timeout=5)
    servicer.fault = near.value
    with pytest.raises(family) as far, calling("coordinator"):
        stub.Push(iter([]), timeout=5)
    assert far.value.code == fault.code


def test_a_refusal_bears_the_name_of_the_error(served: Served) -> None:
    servicer, stub, _ = served
    servicer.fault = ChainRuleViolated(rule="watermark", text="lower")
    with pytest.raises(Refused) as caught, calling("ingest"):
        stub.Push(iter([]), timeout=5)
    assert caught.value.reason == "ChainRuleViolated"


def test_advice_is_transmitted_too(served: Served) -> None:
    servicer, stub, _ = served
    servicer.fault = Advised(text="bad")
    with pytest.raises(InvalidInput) as caught, calling("ingest"):
        stub.Push(iter([]), timeout=5)
    assert caught.value.advice() == "try “this” instead"


def test_a_stream_ends_with_the_error(served: Served) -> None:
    servicer, stub, _ = served
    servicer.fault = NotFound(what="dataset a")
    seen = []
    with pytest.raises(NotFound), calling("ingest"):
        seen.extend(stub.Drain(pb.DrainRequest(), timeout=5))
    servicer.fault = None
    assert [item.done for item in stub.Drain(pb.DrainRequest(), timeout=5)] == [False, True]


def test_a_disk_that_is_full_is_unavailable_and_no_bug(served: Served) -> None:
    servicer, stub, _ = served
    servicer.fault = OSError(errno.ENOSPC, "No space left on device", "/home/ann/scratch/x")
    with pytest.raises(Unavailable) as caught, calling("ingest"):
        stub.Push(iter([]), timeout=5)
    assert (caught.value.code, "the disk is full" in str(caught.value)) == ("StorageUnavailable", True)


def test_the_message_of_a_bug_is_not_transmitted(served: Served) -> None:
    servicer, stub, _ = served
    servicer.fault = RuntimeError("/home/secret")
    with pytest.raises(OdfError) as caught, calling("ingest"):
        stub.Push(iter([]), timeout=5)
    assert "secret" not in str(caught.value)
    assert "RuntimeError" in str(caught.value)


def test_large_messages_pass(served: Served) -> None:
    _, stub, _ = served
    size = 20 * 1024 * 1024
    assert stub.Push(iter([pb.PushPart(content=bytes(size))]), timeout=20).records == size


def test_a_missing_server_is_unavailable() -> None:
    with channel("127.0.0.1:1") as open_channel, pytest.raises(Unavailable), calling("ingest"):
        ingest_pb2_grpc.IngestStub(open_channel).Push(iter([]), timeout=5)


def test_a_server_too_busy_to_greet_at_once_is_waited_for() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as busy,
        channel(f"127.0.0.1:{busy.getsockname()[1]}") as open_channel,
        pytest.raises(Unavailable, match="no answer in time"),
        calling("ingest"),
    ):
        ingest_pb2_grpc.IngestStub(open_channel).Push(iter([]), timeout=1)


def test_an_address_that_is_taken_is_unavailable(served: Served) -> None:
    _, _, server = served
    with pytest.raises(Unavailable):
        serve(f"127.0.0.1:{server.port}", lambda _: ())


def test_health_and_reflection_answer(served: Served) -> None:
    _, _, server = served
    with channel(f"127.0.0.1:{server.port}") as open_channel:
        check: Callable[..., health_pb2.HealthCheckResponse] = health_pb2_grpc.HealthStub(open_channel).Check
        request = health_pb2.HealthCheckRequest(service=NAME)
        assert check(request, timeout=5).status == health_pb2.HealthCheckResponse.NOT_SERVING
        server.set_ready()
        assert check(request, timeout=5).status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = reflection_pb2_grpc.ServerReflectionStub(open_channel).ServerReflectionInfo(
            iter([asked]), timeout=5
        )
        names = [service.name for service in next(answers).list_services_response.service]
    assert NAME in names


FREEZABLE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_grpc import NAME, Servicer
from odf_common.adapters.grpc.server import serve
from odf_common.proto.odf.node.v1 import ingest_pb2_grpc
def register(server):
    ingest_pb2_grpc.add_IngestServicer_to_server(Servicer(), server)
    return (NAME,)
server = serve("127.0.0.1:0", register)
print(server.port, flush=True)
time.sleep(60)
"""


def test_a_call_to_a_frozen_process_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PING_EVERY_MS", "PING_TIMEOUT_MS"):
        monkeypatch.setattr(grpc_client, name, 500)
    command = [sys.executable, "-c", FREEZABLE, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        try:
            with await_channel("ingest", address) as open_channel:
                stub = ingest_pb2_grpc.IngestStub(open_channel)
                assert [item.done for item in stub.Drain(pb.DrainRequest())] == [False, True]
                freeze(process)
                with pytest.raises(Unavailable, match="ingest cannot be reached"), calling("ingest"):
                    list(stub.Drain(pb.DrainRequest(), timeout=60))
        finally:
            process.kill()


def test_a_call_that_only_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_client, "PING_EVERY_MS", 1000)  # gRPC does not ping more often

    class Slow(Servicer):
        def Polls(self, request: pb.PollsRequest, context: object) -> pb.PollsReply:  # noqa: N802
            time.sleep(6.5)  # by default, a server breaks the connection at the fourth ping
            return pb.PollsReply()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(Slow(), server)
        return (NAME,)

    server = serve("127.0.0.1:0", register)
    with await_channel("ingest", f"127.0.0.1:{server.port}") as open_channel:
        assert (
            ingest_pb2_grpc.IngestStub(open_channel).Polls(pb.PollsRequest(), timeout=60) == pb.PollsReply()
        )
    server.stop(0)


def test_commands_of_an_error_have_the_dataset_that_the_call_names(served: Served) -> None:
    servicer, stub, _ = served
    servicer.fault = Refused(reason="Blank", text="empty; `odf source set DATASET a=b` takes it")
    with pytest.raises(Refused) as caught, calling("ingest"):
        list(stub.Drain(pb.DrainRequest(ref="cities@tested"), timeout=5))
    assert caught.value.text == "empty; `odf source set cities a=b` takes it"
    with pytest.raises(Refused) as caught, calling("ingest"):
        stub.Push(iter([]), timeout=5)
    assert "DATASET" in caught.value.text  # such a call names none


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
