import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odf_cli import main as cli
from odf_cli.embedded import doctor_checks
from odf_cli.embedded.doctor_checks import FAILED, OK, WARNING, Finding, examine
from odf_cli.embedded.node_file import Node, NoNode, Part, write_node
from odf_cli.embedded.part_states import ENDED, RECONNECTS, SILENT, located_node, with_outages
from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.outage_files import Outage
from odf_common.adapters.local.secrets import ensure_secret
from odf_common.service.settings import Settings

NOWHERE = "127.0.0.1:1"
SINCE = "2030-01-01T00:00:00Z"


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a service that serves."""
    server = serve("127.0.0.1:0", lambda _: ())
    yield f"127.0.0.1:{server.port}"
    server.stop(0)


def test_services_that_no_supervisor_runs_are_found_by_their_addresses(tmp_path: Path, address: str) -> None:
    settings = Settings(home=tmp_path, coordinator_grpc=address, sync_grpc=NOWHERE, views_http=NOWHERE)
    node = located_node(settings)
    assert [(part.name, part.state) for part in node.services] == [
        ("coordinator", "ready"),
        ("sync", "unreachable"),
        ("views", "unreachable"),
    ]
    assert node.grpc == {"coordinator": address, "sync": NOWHERE}
    assert [bool(part.remedy) for part in node.services] == [False, True, True]


def test_a_part_of_a_supervisor_is_shown_as_it_answers_now(tmp_path: Path, address: str) -> None:
    with subprocess.Popen(["true"]) as process, socket.create_server(("127.0.0.1", 0)) as mute:
        process.wait()
        grpc = {"sync": address, "verifier": f"127.0.0.1:{mute.getsockname()[1]}"}
        services = tuple(Part(name=name, pid=os.getpid(), state="ready", since=SINCE) for name in grpc)
        gone = Part(name="kafka", pid=process.pid, state="ready", since=SINCE)
        write_node(Node(home=tmp_path, pid=os.getpid(), grpc=grpc, services=services, parts=(gone,)))
        node = located_node(Settings(home=tmp_path))
    sync, verifier = node.services
    assert (sync.state, sync.since) == ("ready", SINCE)
    assert (verifier.state, verifier.since, verifier.problem) == ("unresponsive", None, SILENT)
    log = tmp_path / "logs" / "verifier.log"
    assert (
        verifier.remedy
        == f"if it does not recover, `kill -9 {os.getpid()}`: the node restarts it; its log is {log}"
    )
    assert [(part.state, part.pid, part.problem) for part in node.parts] == [("restarting", None, ENDED)]


def test_kafka_that_no_supervisor_runs_is_asked_and_named_once(tmp_path: Path, address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        kafka = f"127.0.0.1:{mute.getsockname()[1]}"
        node = located_node(Settings(home=tmp_path, coordinator_grpc=address, kafka=kafka))
    assert [(part.name, part.state, part.problem) for part in node.parts] == [
        ("kafka", "unreachable", "no answer in time")
    ]


def test_without_addresses_there_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(NoNode):
        located_node(Settings(home=tmp_path))


def test_status_shows_services_that_no_supervisor_runs(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    monkeypatch.setenv("ODF_VERIFIER_GRPC", address)
    monkeypatch.setenv("ODF_SYNC_GRPC", NOWHERE)
    assert cli.main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "sync\n  is unreachable\n" in shown
    assert [line.split()[:2] for line in shown.splitlines() if address in line] == [["verifier", "ready"]]


def test_the_doctor_finds_services_at_their_addresses_and_not_a_port_that_is_taken(
    tmp_path: Path, address: str
) -> None:
    found = {one.check: one for one in examine(Settings(home=tmp_path, verifier_grpc=address))}
    assert (found["verifier"].state, found["verifier"].text) == (OK, "ready")
    assert found.keys().isdisjoint({"addresses", "node"})


def test_where_no_service_answers_the_doctor_looks_for_free_ports(tmp_path: Path) -> None:
    found = {one.check: one for one in examine(Settings(home=tmp_path, verifier_grpc="127.0.0.1:9"))}
    assert found["addresses"].text == "ODF_VERIFIER_GRPC: free"
    assert "none is running" in found["node"].text


def test_an_image_of_one_service_needs_no_java_and_no_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "installed_services", lambda: {"coordinator": "odf_coordinator"})
    found = {one.check: one for one in examine(Settings(home=tmp_path, kafka=NOWHERE, redis=NOWHERE))}
    assert "java" not in found
    assert "pyspark" not in found["versions"].text


def test_services_that_lack_a_part_are_degraded_and_the_part_names_who_cannot_reach_it(
    tmp_path: Path,
) -> None:
    node = Node(
        home=tmp_path,
        pid=1,
        services=tuple(Part(name=name, pid=None, state="ready") for name in ("ingest", "sync", "verifier")),
        parts=(
            Part(name="redis", pid=None, state="ready"),
            Part(name="kafka", pid=None, state="unresponsive"),
        ),
    )

    def outage(part: str, seen_by: str, second: int) -> Outage:
        return Outage(part=part, seen_by=seen_by, since=f"2030-01-01T00:00:0{second}Z", why="no answer")

    seen = [
        outage("redis", "ingest", 5),
        outage("store", "ingest", 4),
        outage("store", "sync", 3),
        outage("kafka", "ingest", 2),
    ]
    shown = with_outages(node, seen)
    states = {part.name: (part.state, part.since, part.problem) for part in (*shown.services, *shown.parts)}
    assert states == {
        "ingest": ("degraded", "2030-01-01T00:00:02Z", "cannot reach store, kafka"),
        "sync": ("degraded", "2030-01-01T00:00:03Z", "cannot reach store"),
        "verifier": ("ready", None, None),
        "redis": ("unreachable", "2030-01-01T00:00:05Z", "ingest cannot reach it: no answer"),
        "kafka": ("unresponsive", "2030-01-01T00:00:02Z", None),  # as its supervisor says
        "store": ("unreachable", "2030-01-01T00:00:03Z", "ingest, sync cannot reach it: no answer"),
    }


def test_the_remedy_of_a_part_that_a_supervisor_runs_names_its_process_and_its_log(tmp_path: Path) -> None:
    kafka, redis = Part(name="kafka", pid=7, state="ready"), Part(name="redis", pid=None, state="ready")
    seen = [
        Outage(part=part, seen_by="sync", since="2030-01-01T00:00:00Z", why="mute")
        for part in ("kafka", "redis")
    ]
    shown = with_outages(Node(home=tmp_path, pid=1, parts=(kafka, redis)), seen)
    log = tmp_path / "logs" / "kafka.log"
    assert [part.remedy for part in shown.parts] == [
        f"if it does not recover, `kill -9 7`: the node restarts it; its log is {log}",
        RECONNECTS,
    ]


pytestmark = pytest.mark.waits


def found(settings: Settings, check: str) -> Finding:
    (finding,) = [one for one in examine(settings) if one.check == check]
    return finding


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def test_a_healthy_machine_has_no_failed_checks(settings: Settings) -> None:
    assert [one for one in examine(settings) if one.state == FAILED] == []
    assert all(one.remedy == "" for one in examine(settings) if one.state == OK)


def test_a_home_that_does_not_exist_is_a_warning_and_is_not_created(tmp_path: Path) -> None:
    home = tmp_path / "mistyped"
    finding = found(Settings(home=home), "home")
    assert (finding.state, finding.text) == (WARNING, f"{home} does not exist")
    assert "ODF_HOME" in finding.remedy
    assert not home.exists()


def test_an_unknown_variable_is_a_warning(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODF_KAFKA_PASSWORD", "secret")
    (finding,) = [one for one in examine(settings) if "ODF_KAFKA_PASSWORD " in one.text]
    assert (finding.check, finding.state) == ("settings", WARNING)
    assert finding.text.endswith("did you mean ODF_KAFKA_PASSWORD_FILE?")
    assert "secret" not in str(finding)


def test_an_old_java_is_named_with_what_is_needed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = found(settings, "java")
    assert (java.state, "version 11" in java.text, "JAVA_HOME" in java.remedy) == (FAILED, True, True)


def test_a_clock_behind_the_newest_commit_is_found(settings: Settings) -> None:
    head = settings.home / "datasets" / "fed01" / "refs" / "head"
    head.parent.mkdir(parents=True)
    head.write_text("f1620")
    later = time.time() + 3600
    os.utime(head, (later, later))
    clock = found(settings, "clock")
    assert clock.state == FAILED
    assert "in the future" in clock.text


def test_too_little_space_fails_and_little_space_warns(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(count: int) -> Callable[[Path], object]:
        return lambda folder: type("Usage", (), {"free": count, "total": 100 * doctor_checks.GIB})()

    monkeypatch.setattr("shutil.disk_usage", free(doctor_checks.GIB // 2))
    assert found(settings, "disk").state == FAILED
    monkeypatch.setattr("shutil.disk_usage", free(2 * doctor_checks.GIB))
    assert found(settings, "disk").state == WARNING


def test_a_configured_server_that_is_down_and_an_address_that_is_taken_are_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = Settings(home=tmp_path, kafka="127.0.0.1:9", verifier_grpc=address)
        results = {one.check: one for one in examine(settings)}
    assert "127.0.0.1:9" in results["kafka"].text
    assert results["addresses"].text == f"ODF_VERIFIER_GRPC={address}: another process listens there"
    assert results["addresses"].remedy


def test_a_configured_kafka_that_does_not_answer_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        kafka = found(Settings(home=tmp_path, kafka=f"127.0.0.1:{mute.getsockname()[1]}"), "kafka")
    assert (kafka.state, kafka.text, kafka.remedy) == (
        FAILED,
        "it does not answer: no answer in time",
        RECONNECTS,
    )


def test_parts_of_a_running_node_that_are_down_or_silent_are_named(settings: Settings) -> None:
    parts = (
        Part(name="ingest", pid=1, state="ready", since="2026-01-01T00:00:00Z"),
        Part(name="sync", pid=None, state="restarting", since="2026-01-01T00:00:00Z"),
    )
    write_node(Node(home=settings.home, pid=os.getpid(), grpc={"ingest": "127.0.0.1:9"}, services=parts))
    assert "it does not answer" in found(settings, "ingest").text
    assert "sync.log" in found(settings, "sync").remedy


def test_kafka_and_redis_of_a_running_node_that_are_silent_have_the_remedy_of_its_parts(
    settings: Settings,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        parts = (Part(name="kafka", pid=None, state="restarting"), Part(name="redis", pid=1, state="ready"))
        ensure_secret(settings.home, "redis")
        write_node(Node(home=settings.home, pid=os.getpid(), kafka="127.0.0.1:9", redis=address, parts=parts))
        shown = {one.check: one for one in reversed(list(examine(settings))) if one.state == FAILED}
    assert shown["kafka"].text == "it does not answer: Connection refused"
    assert "kafka.log" in shown["kafka"].remedy
    assert shown["redis"].text.startswith("it does not answer: ")
    assert "`kill -9 1`" in shown["redis"].remedy
    assert not any("ODF_" in one.text + one.remedy for one in shown.values())


def test_a_check_that_breaks_hides_no_other(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: Settings, node: Node | None) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor_checks, "CHECKS", (broken, *doctor_checks.CHECKS))
    first, *others = examine(settings)
    assert (first.state, "ZeroDivisionError" in first.text) == (FAILED, True)
    assert others


def test_the_command_fails_if_a_check_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ODF_HOME", str(tmp_path / "file" / "home"))
    assert cli.main(["doctor"]) == 1
    assert "set ODF_HOME" in capsys.readouterr().out


def test_attempts_to_reach_a_bucket_are_not_among_the_results(tmp_path: Path) -> None:
    store = {
        "ODF_STORE": "s3+http://127.0.0.1:9/some-bucket",
        "ODF_S3_ACCESS_KEY": "a",
        "ODF_S3_SECRET_KEY": "b",
    }
    said = subprocess.run(  # another process: this one has configured what is logged
        [str(Path(sys.executable).with_name("odf")), "doctor", "--output", "json"],
        env={**os.environ, **store, "ODF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    (checked,) = [row for row in json.loads(said.stdout) if row["check"] == "store"]
    assert checked["state"] == FAILED
    assert said.stderr == ""
