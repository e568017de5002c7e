"""Which `redis-server` the embedded node runs."""

from pathlib import Path

import pytest

from odf_cli.embedded.parts import kafka_redis
from odf_cli.embedded.parts.kafka_redis import NotInstalled, redis_server


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
