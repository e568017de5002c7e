"""gRPC between the services of a node over mutual TLS: only certificates of the node's CA are accepted."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from odf_testing.certificates import self_signed

from odf_common.adapters.grpc.client import await_channel, calling, channel
from odf_common.adapters.grpc.peer_credentials import PeerTls
from odf_common.adapters.grpc.server import serve
from odf_common.errors import InvalidInput, Unavailable


def peer(folder: Path) -> PeerTls:
    folder.mkdir(exist_ok=True)
    certificate, key = self_signed(folder)
    return PeerTls.read(certificate=certificate, key=key, authority=certificate)


@pytest.fixture
def tls(tmp_path: Path) -> PeerTls:
    return peer(tmp_path)


@pytest.fixture
def port(tls: PeerTls) -> Iterator[int]:
    server = serve("127.0.0.1:0", lambda _: (), credentials=tls)
    yield server.port
    server.stop(0)


def is_serving(open_channel: grpc.Channel) -> bool:
    stub = health_pb2_grpc.HealthStub(open_channel)
    with calling("the service"):
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_peers_with_certificates_of_one_authority_connect(tls: PeerTls, port: int) -> None:
    address = f"127.0.0.1:{port}"
    with channel(address, tls) as plain, await_channel("the service", address, credentials=tls) as watched:
        assert is_serving(plain)
        assert is_serving(watched)


def test_others_are_refused(tmp_path: Path, tls: PeerTls, port: int) -> None:
    stranger = peer(tmp_path / "stranger")
    trusting = PeerTls(certificate=stranger.certificate, key=stranger.key, authority=tls.authority)
    for own in (None, stranger, trusting):
        with channel(f"127.0.0.1:{port}", own) as open_channel, pytest.raises(Unavailable):
            is_serving(open_channel)


def test_a_client_without_a_certificate_is_refused(tls: PeerTls, port: int) -> None:
    anonymous = grpc.ssl_channel_credentials(tls.authority)
    with grpc.secure_channel(f"127.0.0.1:{port}", anonymous) as open_channel, pytest.raises(Unavailable):
        is_serving(open_channel)


def test_a_server_whose_certificate_names_another_host_is_refused(tls: PeerTls, port: int) -> None:
    with channel(f"localhost:{port}", tls) as open_channel, pytest.raises(Unavailable):
        is_serving(open_channel)


def test_a_key_of_another_certificate_is_named_when_it_is_read(tmp_path: Path, tls: PeerTls) -> None:
    del tls
    (tmp_path / "other").mkdir()
    certificate, _ = self_signed(tmp_path)
    _, key = self_signed(tmp_path / "other")
    with pytest.raises(
        InvalidInput, match=r"cert\.pem, .*other/key\.pem: not a certificate and its private key"
    ):
        PeerTls.read(certificate=certificate, key=key, authority=certificate)
