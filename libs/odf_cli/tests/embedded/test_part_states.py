import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_cli import main as cli
from odf_cli.embedded import doctor_checks
from odf_cli.embedded.doctor_checks import OK, examine
from odf_cli.embedded.node_file import Node, NoNode, Part, write_node
from odf_cli.embedded.part_states import ENDED, RECONNECTS, SILENT, located_node, with_outages
from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.outage_files import Outage
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
