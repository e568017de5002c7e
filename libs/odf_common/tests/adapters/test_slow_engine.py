"""An engine that sends nothing delays calls that are in flight, and no others."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from odf_testing.black_hole import black_hole
from odf_testing.builders import a_query
from odf_testing.killed_process import freeze

from odf_common.adapters.grpc.client import RenewedChannel, ServiceUnreachable, channel
from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.grpc.server import serve
from odf_common.codec.flatbuffers import encode_message
from odf_common.errors import Unavailable
from odf_common.metadata.engine_messages import (
    RawQueryRequest,
    RawQueryResponseProgress,
    RawQueryResponseRoot,
    RawQueryResponseSuccess,
)
from odf_common.metadata.events import SqlQueryStep
from odf_common.ports.engine import EngineSilent, QueryTooSlow
from odf_common.proto.engine import engine_pb2, engine_pb2_grpc

REQUEST = RawQueryRequest(
    input_data_paths=("in",), transform=a_query(SqlQueryStep(query="SELECT 1")), output_data_path="out"
)
PROGRESS, DONE = RawQueryResponseProgress(), RawQueryResponseSuccess(num_records=7)


class Engine(engine_pb2_grpc.EngineServicer):
    """Hangs between its first and last message until it is released."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_free = threading.Event()

    def ExecuteRawQuery(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        self.asked += 1
        yield engine_pb2.RawQueryResponse(flatbuffer=encode_message(RawQueryResponseRoot(value=PROGRESS)))
        self.is_free.wait(30)
        yield engine_pb2.RawQueryResponse(flatbuffer=encode_message(RawQueryResponseRoot(value=DONE)))


class BusyEngine(engine_pb2_grpc.EngineServicer):
    """Queues a request, and then works on it forever."""

    def ExecuteRawQuery(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        raw = encode_message(RawQueryResponseRoot(value=PROGRESS))
        self.ended = threading.Event()
        context.add_callback(self.ended.set)
        for number in range(30_000):
            stage = "begun" if number > 30 else ""
            yield engine_pb2.RawQueryResponse(flatbuffer=raw, progress=engine_pb2.Progress(stage=stage))
            self.waited = number
            time.sleep(0.001)


def added(engine: engine_pb2_grpc.EngineServicer) -> Callable[[grpc.Server], tuple[str, ...]]:
    def add(server: grpc.Server) -> tuple[str, ...]:
        engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
        return ("engine.Engine",)

    return add


def test_a_silent_engine_gets_no_further_requests_until_it_responds() -> None:
    engine = Engine()
    server = serve("127.0.0.1:0", added(engine))
    client = EngineClient(f"127.0.0.1:{server.port}", quiet=0.2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.execute_raw_query, REQUEST)
        while not client.is_silent:
            time.sleep(0.01)
        with pytest.raises(EngineSilent, match="no heartbeat"):
            client.execute_raw_query(REQUEST)
        with pytest.raises(EngineSilent, match="no heartbeat"):
            client.tables_of("SELECT 1")
        assert engine.asked == 1
        engine.is_free.set()
        assert waiting.result(30) == DONE
    assert client.execute_raw_query(REQUEST) == DONE
    client.close()
    server.stop(0)


class AnalysingEngine(engine_pb2_grpc.EngineServicer):
    """Takes a while for each analysis, but is well."""

    def ValidateQuery(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        time.sleep(0.7)
        return engine_pb2.ValidateQueryResponse(tables=["t"])


FREEZABLE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_slow_engine import AnalysingEngine, added
from odf_common.adapters.grpc.server import serve
server = serve("127.0.0.1:0", added(AnalysingEngine()))
print(server.port, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_frozen_engine_is_reported_soon_also_by_calls_without_heartbeats(is_connected: bool) -> None:
    folder = str(Path(__file__).parent)
    with (
        subprocess.Popen([sys.executable, "-c", FREEZABLE, folder], stdout=subprocess.PIPE) as process,
        ExitStack() as ending,
    ):
        ending.callback(process.kill)
        assert process.stdout is not None
        client = EngineClient(f"127.0.0.1:{int(process.stdout.readline())}", quiet=0.5)
        ending.callback(client.close)
        if is_connected:
            assert client.tables_of("SELECT 1") == ("t",)
        freeze(process)
        for ask in (lambda: client.tables_of("SELECT 1"), lambda: client.query("SELECT 1", ())):
            begun = time.monotonic()
            with pytest.raises(EngineSilent, match=r"for 0\.75 s") as caught:
                ask()
            assert time.monotonic() - begun < 5
            assert "end its process" in caught.value.advice()


def test_a_query_of_an_engine_that_has_gone_ends_and_the_next_one_is_answered_by_its_successor() -> None:
    gone, successor = Engine(), AnalysingEngine()
    servers = [serve("127.0.0.1:0", added(engine)) for engine in (gone, successor)]
    with black_hole(servers[0].port) as hole, ThreadPoolExecutor(1) as pool:
        client = EngineClient(hole.address)
        waiting = pool.submit(client.execute_raw_query, REQUEST)
        while not gone.asked:
            time.sleep(0.01)
        hole.drop()
        with pytest.raises(EngineSilent, match="the network to it is broken"):
            waiting.result(30)
        hole.restore(servers[1].port)
        assert client.tables_of("SELECT 1") == ("t",)
        client.close()
    gone.is_free.set()
    for server in servers:
        server.stop(0)


def test_an_engine_that_takes_long_for_an_analysis_is_waited_for() -> None:
    server = serve("127.0.0.1:0", added(AnalysingEngine()))
    client = EngineClient(f"127.0.0.1:{server.port}", quiet=0.3)
    assert client.tables_of("SELECT 1") == ("t",)
    client.close()
    server.stop(0)


def ended_engine() -> str:
    server = serve("127.0.0.1:0", added(AnalysingEngine()))
    server.stop(0)
    return f"127.0.0.1:{server.port}"


def test_calls_for_a_person_wait_for_an_engine_that_is_being_restarted() -> None:
    address = ended_engine()
    client = EngineClient(address)
    with pytest.raises(Unavailable):  # after which gRPC pauses before it connects again
        client.execute_raw_query(REQUEST)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.tables_of, "SELECT 1")
        time.sleep(0.2)
        assert not asked.done()
        server = serve(address, added(AnalysingEngine()))
        assert asked.result(30) == ("t",)
    client.close()
    server.stop(0)


def test_an_engine_that_does_not_come_back_is_named() -> None:
    client = EngineClient(ended_engine(), restart=0.0)
    for ask in (lambda: client.tables_of("SELECT 1"), lambda: client.query("SELECT 1", ())):
        with pytest.raises(ServiceUnreachable, match="the engine cannot be reached: no server answers at"):
            ask()
    client.close()


def test_a_query_of_a_source_times_out_after_its_start() -> None:
    engine = BusyEngine()
    server = serve("127.0.0.1:0", added(engine))
    client = EngineClient(f"127.0.0.1:{server.port}", preprocessing=0.0)
    with pytest.raises(QueryTooSlow, match="did not finish within 0 s"):
        client.execute_raw_query(REQUEST)
    assert engine.ended.wait(30)
    assert engine.waited >= 30
    client.close()
    server.stop(0)


SERVING = health_pb2.HealthCheckResponse.SERVING
CLOSED = "127.0.0.1:1"


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0)


class Addresses:
    """Opens channels to one address after the other, as a name that another address gets."""

    def __init__(self, *addresses: str) -> None:
        self.left = list(addresses)

    def __call__(self) -> grpc.Channel:
        return grpc.insecure_channel(self.left.pop(0))


def health_at(*addresses: str, seconds: float = 0.0) -> tuple[health_pb2_grpc.HealthStub, Addresses]:
    opened = Addresses(*addresses)
    renewed = RenewedChannel(
        opened, lambda error: error.code() is grpc.StatusCode.UNAVAILABLE, seconds=seconds
    )
    return health_pb2_grpc.HealthStub(renewed), opened


WAYS: Final[Mapping[str, Callable[[health_pb2_grpc.HealthStub, health_pb2.HealthCheckRequest], object]]] = {
    "call": lambda stub, request: stub.Check(request),
    "future": lambda stub, request: stub.Check.future(request).result(10),
    "with_call": lambda stub, request: stub.Check.with_call(request),
    "stream": lambda stub, request: next(stub.Watch(request)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_after_one_that_found_no_server_looks_the_name_up_again(address: str, way: str) -> None:
    stub, _ = health_at(CLOSED, address)
    request = health_pb2.HealthCheckRequest()
    with pytest.raises(grpc.RpcError):
        WAYS[way](stub, request)
    for _ in range(100):  # a future is done a little before its callbacks
        try:
            assert stub.Check(request).status == SERVING
        except grpc.RpcError:
            continue
        break
    assert next(stub.Watch(request)).status == SERVING


def test_no_other_channel_is_opened_soon_after_one_or_for_an_answer(address: str) -> None:
    stub, opened = health_at(CLOSED, address, seconds=60.0)
    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            stub.Check(health_pb2.HealthCheckRequest())
    assert opened.left == [address]
    stub, opened = health_at(address, CLOSED)
    with pytest.raises(grpc.RpcError) as unknown:
        stub.Check(health_pb2.HealthCheckRequest(service="unknown"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert opened.left == [CLOSED]


def test_clients_get_such_a_channel() -> None:
    server = serve("127.0.0.1:0", lambda _: ())
    with channel(f"127.0.0.1:{server.port}") as opened:
        assert isinstance(opened, RenewedChannel)
        assert health_pb2_grpc.HealthStub(opened).Check(health_pb2.HealthCheckRequest()) is not None
    server.stop(0)
