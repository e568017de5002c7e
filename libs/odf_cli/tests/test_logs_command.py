import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from odf_cli import main as cli
from odf_cli.commands import node as node_commands
from odf_cli.embedded.checks import AddressTaken, HomeUnusable, require_free, require_home
from odf_cli.embedded.node_file import Node, Part, write_node
from odf_cli.embedded.parts.log_excerpt import log_excerpt
from odf_cli.embedded.parts.tcp_ports import PortTaken, allocate
from odf_cli.embedded.supervisor import Start
from odf_common.errors import InvalidInput
from odf_common.service.settings import Settings


def entry(number: int, **facts: object) -> str:
    return json.dumps({"timestamp": f"2026-03-01T10:00:{number:02}Z", "event": f"step {number}", **facts})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a home's logs: of ingest with 30 lines, of kafka with text."""
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "ingest.log").write_text("".join(entry(number, level="info") + "\n" for number in range(30)))
    (folder / "kafka.log").write_text("INFO started\n  at a.stack.frame\nINFO ready\n")
    (folder / "kafka.log.1").write_text("older\n")
    return folder


@pytest.mark.usefixtures("folder")
def test_the_last_lines_of_each_part_are_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", "-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ingest: 10:00:28 step 28", "ingest: 10:00:29 step 29", "kafka: INFO started", "kafka: INFO ready",
    ]  # fmt: skip


def test_lines_are_whole_however_long_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = entry(59, level="error", why="ö" * 900)
    with (folder / "ingest.log").open("a") as file:
        file.write(long + "\n" + '{"event": "half')
    assert cli.main(["logs", "ingest", "-n", "1", "--raw"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"ingest: {long}"]
    assert cli.main(["logs", "ingest", "-n", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"ingest: 10:00:59 error: step 59 why={'ö' * 900}"]


@pytest.mark.usefixtures("folder")
def test_an_unknown_part_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", "ingset"]) == 1
    assert "a log of 'ingset' (did you mean ingest?) does not exist" in capsys.readouterr().err


def test_a_home_without_logs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    assert cli.main(["logs"]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_new_lines_are_followed_once_they_have_ended_even_in_an_emptied_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "ingest.log"

    def changes() -> Iterator[None]:
        with file.open("a") as log:
            log.write("begun ")
        yield
        with file.open("a") as log:
            log.write("and ended\n")
        yield
        file.write_text("emptied\n")
        yield

    steps = changes()

    def sleep(_seconds: float) -> None:
        try:
            next(steps)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(time, "sleep", sleep)
    assert cli.main(["logs", "ingest", "-n", "0", "--follow"]) == 130
    assert capsys.readouterr().out.splitlines() == ["ingest: begun and ended", "ingest: emptied"]


@pytest.mark.parametrize("options", [[], ["--raw"]])
def test_characters_that_act_on_a_terminal_are_escaped(
    folder: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ingest.log").write_text("a\x1b[31m \u202eb\n" + entry(1, why="\x1b[31m") + "\n")
    assert cli.main(["logs", "ingest", *options]) == 0
    shown = capsys.readouterr().out
    assert not {"\x1b", "\u202e"} & set(shown)
    assert "\\u202e" in shown


@pytest.mark.usefixtures("folder")
def test_a_shell_completes_parts() -> None:
    (parameter, *_) = node_commands.logs_command.params
    items = parameter.shell_complete(click.Context(node_commands.logs_command), "ka")
    assert [item.value for item in items] == ["kafka"]


@pytest.fixture
def busy() -> Iterator[int]:
    """Return a port at which a process listens, and sends nothing."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    monkeypatch.setenv("ODF_HOME", str(made))
    return made


@pytest.mark.parametrize("detach", [True, False])
def test_a_wrong_kafka_address_is_named_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, detach: bool
) -> None:
    monkeypatch.setenv("ODF_KAFKA", "127.0.0.1:1")
    assert cli.main(["up", *(["--detach"] if detach else [])]) == 1
    said = capsys.readouterr().err
    assert "error: Kafka cannot be reached at 127.0.0.1:1, which ODF_KAFKA names: Connection refused" in said
    assert "hint: check the address" in said
    assert not (home / "node.json").exists()


def test_a_server_other_than_kafka_is_named(
    home: Path, busy: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del home
    monkeypatch.setenv("ODF_KAFKA", f"127.0.0.1:{busy}")
    assert cli.main(["up"]) == 1
    assert "does not answer as Kafka" in capsys.readouterr().err


def test_a_wrong_redis_address_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del home
    monkeypatch.setenv("ODF_REDIS", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("ODF_REDIS_PASSWORD", "secret")
    assert cli.main(["up"]) == 1
    said = capsys.readouterr().err
    assert "Redis cannot be reached at 127.0.0.1:1, which ODF_REDIS names" in said
    assert (
        "warning: ODF_REDIS_PASSWORD is not a setting of the node; did you mean ODF_REDIS_PASSWORD_FILE?"
        in said
    )
    assert "secret" not in said


def test_a_home_that_cannot_be_written_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeUnusable, match="Not a directory"):
        require_home(tmp_path / "file" / "home")
    monkeypatch.setenv("ODF_HOME", str(tmp_path / "file" / "home"))
    for command in ("up", "status", "list", "down"):
        assert cli.main([command]) in ((1,) if command != "down" else (0, 1)), command
    assert "hint: set ODF_HOME to a folder" in capsys.readouterr().err


def test_a_new_home_is_its_owners_alone_and_an_existing_one_is_left_as_it_is(tmp_path: Path) -> None:
    new, existing = tmp_path / "parent" / "new", tmp_path / "existing"
    existing.mkdir(mode=0o755)
    for home in (new, existing, new):
        require_home(home)
    assert [home.stat().st_mode & 0o777 for home in (new, existing)] == [0o700, 0o755]
    assert sorted(file.name for file in new.iterdir()) == ["logs"]


def test_a_busy_http_port_is_named_by_its_setting(
    home: Path, busy: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del home
    monkeypatch.setenv("ODF_SYNC_HTTP", f"127.0.0.1:{busy}")
    assert cli.main(["up", "sync"]) == 1
    said = capsys.readouterr().err
    assert f"error: ODF_SYNC_HTTP=127.0.0.1:{busy}: another process listens there" in said
    with pytest.raises(AddressTaken, match="not an address of this machine"):
        require_free({"ODF_SYNC_HTTP": "203.0.113.1:80"})


def test_a_remembered_port_that_is_busy_is_not_replaced_silently(tmp_path: Path) -> None:
    port = allocate(tmp_path, ["kafka"])["kafka"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(PortTaken, match=f"port {port}, which this node's kafka had before") as caught:
            allocate(tmp_path, ["kafka"], must_keep=True)
        assert "--new-ports" in caught.value.advice()
        other = allocate(tmp_path, ["kafka"])["kafka"]
    assert other != port
    assert allocate(tmp_path, ["kafka"], must_keep=True)["kafka"] == other


@pytest.mark.parametrize("name", ["kafka", "sync", "verifier-metrics"])
def test_a_start_stops_at_a_port_that_is_taken(
    home: Path, busy: int, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    home.mkdir()
    (home / "ports.json").write_text(json.dumps({name: busy}))
    assert cli.main(["up", "kafka", "verifier"]) == 1
    said = capsys.readouterr().err
    assert f"error: port {busy}, which this node's {name} had before, is in use by another process" in said
    assert "odf up --new-ports" in said
    assert json.loads((home / "ports.json").read_text())[name] == busy


def test_a_second_up_fails_when_the_node_dies_before_it_is_ready(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    with subprocess.Popen(["sleep", "60"]) as supervisor:
        parts = (Part(name="kafka", pid=None, state="starting"),)
        write_node(Node(home=home, pid=supervisor.pid, parts=parts))
        death = threading.Timer(0.5, supervisor.kill)
        death.start()
        assert cli.main(["up", "--detach"]) == 1
        death.join()
    assert "stopped before it was ready" in capsys.readouterr().err


def test_a_start_can_be_sent_to_another_process() -> None:
    for start in (Start(), Start(services=("kafka", "sync"), new_ports=True), Start(take_over=True)):
        assert Start.parse(start.arguments()) == start


def test_a_prefix_has_the_characters_of_topics() -> None:
    assert Settings.from_env({"ODF_KAFKA_PREFIX": "staging."}).kafka_prefix == "staging."
    with pytest.raises(InvalidInput, match="ODF_KAFKA_PREFIX"):
        Settings.from_env({"ODF_KAFKA_PREFIX": "a b"})


def test_logs_are_shown_in_readable_form() -> None:
    text = """
{"event": "ready", "level": "info", "timestamp": "2026-01-01T10:00:00.5Z", "service": "sync", "logger": "x"}
Traceback (most recent call last):
  File "a.py", line 1, in <module>
ValueError: no
java.io.IOException: broken
\tat org.apache.Kafka.main(Kafka.scala:1)
{"event": "lost", "what": "Kafka", "level": "warning", "timestamp": "2026-01-01T10:00:01Z"}
{"event": "lost", "what": "Kafka", "level": "warning", "timestamp": "2026-01-01T10:00:02Z"}
{"event": "bug", "level": "error", "timestamp": "2026-01-01T10:00:03Z", "exception": "Trace…\\n  x\\nKeyError: 'a'"}
"""
    assert log_excerpt(text) == (
        "10:00:00 ready",
        "ValueError: no",
        "java.io.IOException: broken",
        "10:00:02 warning: lost what=Kafka",
        "10:00:03 error: bug",
        "10:00:03 error: KeyError: 'a'",
    )
    assert log_excerpt(text, 1) == ("10:00:03 error: KeyError: 'a'",)
    assert log_excerpt("") == ()
