import os
import random
import socket
import tempfile
from pathlib import Path

import pytest

from odf_cli.embedded.parts.tcp_ports import END_PORT, FIRST_PORT, allocate, is_free


def test_ports_are_free_different_and_remembered(tmp_path: Path) -> None:
    first = allocate(tmp_path, ("a", "b", "c"))
    assert len(set(first.values())) == 3
    assert all(FIRST_PORT <= port < END_PORT and is_free(port) for port in first.values())
    assert allocate(tmp_path, ("a", "b")) == {"a": first["a"], "b": first["b"]}


def test_a_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    first = allocate(tmp_path, ("a",))["a"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert allocate(tmp_path, ("a",))["a"] != first


def test_nodes_that_choose_at_the_same_time_get_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    homes = [tmp_path / name for name in ("one", "two", "three")]
    for home in homes:
        home.mkdir()
    free = next(port for port in range(FIRST_PORT, END_PORT) if is_free(port) and is_free(port + 1))
    drawn = iter([free, free, free + 1, free])
    monkeypatch.setattr(random, "randrange", lambda *_: next(drawn))
    assert allocate(homes[0], ("a",)) == {"a": free}
    assert allocate(homes[1], ("a",)) == {"a": free + 1}, "the other one has not begun to listen yet"
    (claim,) = tmp_path.glob(f"odf-ports-*/{free}")
    os.utime(claim, (0, 0))
    assert allocate(homes[2], ("a",)) == {"a": free}


def test_the_ports_of_a_node_that_starts_again_are_not_given_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = (tmp_path / name for name in ("one", "two"))
    first.mkdir()
    second.mkdir()
    port = allocate(first, ("a",))["a"]
    (claim,) = tmp_path.glob(f"odf-ports-*/{port}")
    os.utime(claim, (0, 0))
    assert allocate(first, ("a",)) == {"a": port}
    drawn = iter([port, port, FIRST_PORT, *range(FIRST_PORT + 1, END_PORT)])
    monkeypatch.setattr(random, "randrange", lambda *_: next(drawn))
    assert allocate(second, ("a",))["a"] != port


@pytest.mark.parametrize("text", ["{", ""])
def test_a_damaged_list_of_ports_is_written_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "ports.json").write_text(text)
    assert set(allocate(tmp_path, ("a",))) == {"a"}
