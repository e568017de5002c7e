"""`odf reset`, `odf pull --reset-derivatives` and `odf system drop-data` against a coordinator that answers over gRPC."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from odf_testing.coordinator import Coordinator

from odf_cli.embedded.node_file import Node, write_node

Odf = Callable[..., int]


@pytest.fixture
def worked(odf: Odf, node: Coordinator) -> Iterator[Coordinator]:
    """The datasets with two records, and a scheduler that transforms."""
    for minute, city in enumerate(("Oslo", "Rome")):
        node.push("cities", city, minute=minute)
        node.work()
    stop = threading.Event()
    worker = threading.Thread(target=node.scheduler.run, args=(stop,), daemon=True)
    worker.start()
    yield node
    stop.set()
    worker.join()


def test_an_input_is_reset_by_force_and_its_derivatives_follow(
    odf: Odf, worked: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = worked.find("cities.copy").state.input_progress[0].last_block
    worked.push("cities", "Lima", minute=2)
    worked.puller.scheduler.wait(
        worked.find("cities.copy").id, worked.scheduler.request(worked.find("cities.copy").id), 30
    )

    assert odf("reset", "cities", str(kept), "--yes") == 1
    assert "--force" in capsys.readouterr().err
    assert odf("reset", "cities", str(kept), "--yes", "--force") == 0
    capsys.readouterr()
    assert odf("pull", "--reset-derivatives", "cities", "-o", "json") == 0

    said = capsys.readouterr()
    assert "rolled back cities.copy" in said.err
    assert [row["dataset"] for row in json.loads(said.out)] == ["cities", "cities.copy"], "inputs first"
    assert worked.record_reader.tail("cities.copy", 9)["city"].to_pylist() == ["Oslo", "Rome"]


def test_a_watermark_is_not_set_while_derivatives_are_rolled_back(
    odf: Odf, capsys: pytest.CaptureFixture[str]
) -> None:
    time = "2026-01-01T00:00:00Z"
    assert odf("pull", "cities", "--reset-derivatives", "--set-watermark", time) == 2
    assert "one after the other" in capsys.readouterr().err


def test_dropped_data_is_reported_and_rebuilt(
    odf: Odf, worked: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert odf("system", "drop-data", "cities.copy", "--yes", "-o", "json") == 0
    dropped = json.loads(capsys.readouterr().out)
    assert (dropped["dataset"], dropped["slices"], dropped["checkpoints"]) == ("cities.copy", 2, 2)
    assert dropped["bytes"] > 0

    assert dropped_of(odf, capsys) == {"cities": False, "cities.copy": True}
    assert odf("tail", "cities.copy") == 1
    assert "`odf pull cities.copy` recomputes it" in capsys.readouterr().err
    assert odf("pull", "cities.copy", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "rebuilt"
    assert odf("tail", "cities.copy") == 0
    capsys.readouterr()
    assert dropped_of(odf, capsys) == {"cities": False, "cities.copy": False}


def dropped_of(odf: Odf, capsys: pytest.CaptureFixture[str]) -> dict[str, bool]:
    assert odf("list", "-o", "json") == 0
    return {row["alias"]: row["dropped"] for row in json.loads(capsys.readouterr().out)}


def test_the_status_reports_dropped_data_and_stalled_datasets(
    odf: Odf, worked: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = os.environ["ODF_COORDINATOR_GRPC"]
    write_node(Node(home=tmp_path, pid=os.getpid(), grpc={"coordinator": address}))
    worked.dropper.drop("cities.copy")
    worked.push("cities", "Lima", minute=2)
    copy = worked.find("cities.copy").id
    worked.scheduler.wait(copy, worked.scheduler.request(copy), 30)

    assert odf("status", "-o", "json") == 0

    rows = {row["alias"]: row for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert (rows["cities"]["dropped"], rows["cities"]["problem"]) == (False, None)
    assert rows["cities.copy"]["dropped"]
    problem = rows["cities.copy"]["problem"]
    assert "`odf pull cities.copy`" in problem
    assert odf("status") == 0
    head, _, *shown = capsys.readouterr().out.splitlines()[-4:]
    assert head.split() == ["dataset", "records", "watermark", "records/s", "waiting", "dropped", "problem"]
    assert "the data of cities.copy is missing" in shown[1]
    assert odf("status", "Cities.Copy") == 0
    assert problem in capsys.readouterr().out
    assert odf("status", "nowhere") == 1
    assert "dataset nowhere does not exist" in capsys.readouterr().err


def test_a_block_to_reset_to_is_named_as_elsewhere(
    odf: Odf, worked: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    head = str(worked.find("cities.copy").state.head)
    assert odf("reset", "cities.copy", "zzzzzzzz", "--yes") == 1
    assert "block zzzzzzzz in cities.copy does not exist" in capsys.readouterr().err
    assert odf("reset", "cities.copy", "f1620…", "--yes") == 2
    assert "part of a hash needs at least 8 characters" in capsys.readouterr().err
    number = worked.find("cities.copy").state.sequence_number
    for block in (head, head[:16], head[-8:], str(number)):
        assert odf("reset", "cities.copy", block, "--yes", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["head"] == head
    assert odf("reset", "cities.copy", str(number - 1), "--yes") == 0
    assert worked.find("cities.copy").state.sequence_number <= number


def test_a_root_is_reported_to_have_no_query(odf: Odf, capsys: pytest.CaptureFixture[str]) -> None:
    assert odf("inspect", "query", "cities") == 1
    assert "error: cities is a root: its records come from its sources" in capsys.readouterr().err
    assert odf("inspect", "schema", "cities") == 1
    assert "error: cities has no data yet, so it has no schema" in capsys.readouterr().err
    assert odf("inspect", "query", "cities.copy") == 0


def test_dropping_asks_first_and_refuses_roots(
    odf: Odf, worked: Coordinator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.confirm", _no)
    assert odf("system", "drop-data", "cities.copy") == 130
    assert worked.record_reader.tail("cities.copy", 1).num_rows == 1
    capsys.readouterr()

    assert odf("system", "drop-data", "cities", "--yes") == 1
    assert "cities is a root" in capsys.readouterr().err


def _no(question: str, **_: object) -> None:
    raise click.Abort


@pytest.mark.parametrize("query", ["", " \n ", ";", "-- nothing", "/* a\nb */ ; -- c"])
def test_an_empty_query_is_reported_as_empty(
    odf: Odf, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    assert odf("sql", "-c", query) == 1
    assert capsys.readouterr().err.startswith("error: the query is empty\n")
