import asyncio
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from odf_testing.contracts import an_entry

from odf_cli.embedded.checks import StoreChanged, require_store
from odf_cli.embedded.parts import kafka_redis
from odf_cli.embedded.parts.kafka_redis import NotInstalled, redis_server
from odf_cli.embedded.parts.readiness import kafka_answers, redis_answers
from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.errors import StorageUnavailable
from odf_common.service import probes
from odf_common.service.probes import Probe, grpc_serves, http_answers, listens, once_listening
from odf_common.service.settings import Settings

OnConnect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PROBES: dict[str, Callable[[str], Probe]] = {
    "grpc": grpc_serves,
    "http": partial(http_answers, path="/health"),
    "kafka": kafka_answers,
    "redis": partial(redis_answers, password="s3cret"),
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_SECONDS", 0.3)


def probed(on_connect: OnConnect, make: Callable[[str], Probe]) -> bool:
    connections = set[asyncio.Task[None]]()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            await on_connect(reader, writer)
        finally:
            writer.close()

    async def story() -> bool:
        async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as server:
            is_responding = await make(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")()
            _, left = await asyncio.wait(connections, timeout=0.05)  # both ends close
            for connection in left:  # gRPC's channel keeps it
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            return is_responding

    return asyncio.run(story())


async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, as the kernel does for a stopped process, and send nothing."""
    await reader.read()
    writer.close()


@pytest.mark.parametrize("make", PROBES.values(), ids=PROBES)
def test_a_server_that_only_accepts_connections_does_not_respond(make: Callable[[str], Probe]) -> None:
    assert probed(frozen, listens)
    assert not probed(frozen, make)


@pytest.mark.parametrize(
    ("make", "question", "answer"),
    [
        (PROBES["http"], b"GET /health HTTP/1.0\r\n", b"HTTP/1.0 503 Busy\r\n\r\n"),
        (PROBES["kafka"], b"\0\0\0\x0a\0\x12\0\0", struct.pack(">iihi", 10, 7, 0, 0)),
        (PROBES["redis"], b"AUTH s3cret\r\nPING\r\n", b"+OK\r\n+PONG\r\n"),
    ],
)
def test_an_answer_is_recognised(make: Callable[[str], Probe], question: bytes, answer: bytes) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(question)) == question
        writer.write(answer)
        await writer.drain()
        writer.close()

    assert probed(answering, make)


def test_a_server_that_closes_the_connection_or_sends_something_else_does_not_respond() -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def loading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-LOADING Redis is loading the dataset in memory\r\n")
        writer.close()

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n+PONG\r\n")
        writer.close()

    assert not probed(closing, PROBES["redis"])
    assert not probed(loading, PROBES["redis"])
    assert not probed(refusing, PROBES["redis"])


def test_a_grpc_server_responds_until_it_has_ended() -> None:
    server = serve("127.0.0.1:0", lambda _: ())
    address = f"127.0.0.1:{server.port}"

    async def story() -> tuple[bool, bool]:
        probe = once_listening(address, grpc_serves(address))
        before = await probe()
        await asyncio.sleep(0.05)  # the first connection closes
        server.stop(0)
        return before, await probe()

    assert asyncio.run(story()) == (True, False)


def installed(folder: Path, version: str) -> str:
    program = folder / "redis-server"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    "version",
    [
        "Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=a3fdef44459b3ad6",
        "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=d81b8ff71cfb150e",
        "Valkey server v=8.1.1 sha=00000000:1 malloc=jemalloc-5.3.0 bits=64 build=4fe6a4e1f4a8c1e2",
    ],
)
def test_the_one_on_the_path_is_run(tmp_path: Path, version: str) -> None:
    assert redis_server({"PATH": str(tmp_path)}) != installed(tmp_path, version)
    assert redis_server({"PATH": str(tmp_path)}) == str(tmp_path / "redis-server")


@pytest.mark.parametrize("version", ["Redis server v=5.0.7 sha=00000000:0 malloc=jemalloc bits=64", "odd"])
def test_one_without_limits_for_users_is_not_run(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = installed(tmp_path, version)
    assert redis_server({"PATH": str(tmp_path)}) != program
    monkeypatch.setattr(kafka_redis, "_package_file", lambda *_: None)
    with pytest.raises(NotInstalled, match="redis-server 6 or later was not found"):
        redis_server({"PATH": str(tmp_path)})


NOWHERE = "s3+http://127.0.0.1:9/some-bucket/prefix"


def settings(home: Path, store: str = "") -> Settings:
    return Settings.from_env({"ODF_HOME": str(home), "ODF_STORE": store})


def test_a_home_without_a_bucket_needs_no_record_of_its_store(tmp_path: Path) -> None:
    require_store(settings(tmp_path))
    assert not (tmp_path / "store").exists()


def test_a_bucket_that_cannot_be_reached_is_named_and_not_remembered(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable) as caught:
        require_store(settings(tmp_path, NOWHERE))
    assert str(caught.value) == (
        f"the S3 server cannot be reached (Connection refused): {NOWHERE} cannot be used now"
    )
    assert not (tmp_path / "store").exists()


def test_a_home_with_datasets_cannot_be_given_another_store(tmp_path: Path) -> None:
    LocalCatalog(tmp_path).add(an_entry())
    with pytest.raises(StoreChanged) as caught:
        require_store(settings(tmp_path, NOWHERE))
    assert str(caught.value) == f"the datasets of this home are in its folder, and ODF_STORE names {NOWHERE}"
    (tmp_path / "store").write_text(f"{NOWHERE}\n")
    with pytest.raises(StoreChanged, match=r"are in s3[+]http://127.0.0.1:9/some-bucket/prefix, and"):
        require_store(settings(tmp_path))
