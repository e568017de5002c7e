from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from odf_common.adapters.grpc.client import RenewedChannel, channel
from odf_common.adapters.grpc.server import serve

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
