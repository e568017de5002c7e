"""`odf list` and `odf delete` with patterns of names, over a coordinator that has four datasets."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands.datasets import deletable
from odf_cli.output import MAX_CELL_CHARACTERS, shorten_rows
from odf_common.errors import NotFound, Unavailable
from odf_common.identity.keys import generate
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1.ingest_pb2 import StuckReply

IDS = {name: str(generate().dataset_id) for name in ("flights", "flights.late", "flights.worst", "report")}


def summary(name: str, *inputs: str) -> wire.DatasetSummary:
    head = "f1620" + "0" * 64
    return wire.DatasetSummary(
        alias=name, dataset_id=IDS[name], kind="Root", head=head, inputs=[IDS[one] for one in inputs]
    )


@pytest.fixture(autouse=True)
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of datasets that were deleted."""
    known = [
        summary("flights"),
        summary("flights.late", "flights"),
        summary("flights.worst", "flights.late", "flights"),
        summary("report", "flights.worst"),
    ]
    gone: list[str] = []

    def nowhere(request: wire.DescribeRequest, timeout: float) -> None:
        raise NotFound(what=f"dataset {request.ref}")

    coordinator = SimpleNamespace(
        List=lambda request, timeout: wire.ListReply(
            datasets=[one for one in known if one.dataset_id not in gone]
        ),
        Delete=lambda request, timeout: gone.append(request.ref),
        Describe=nowhere,
    )

    @contextmanager
    def opened(node: object = None) -> Iterator[SimpleNamespace]:
        yield coordinator

    monkeypatch.setattr(clients, "coordinator", opened)
    monkeypatch.setattr(clients, "this_node", lambda: None)
    stuck(monkeypatch)
    return gone


def stuck(monkeypatch: pytest.MonkeyPatch, *sources: tuple[str, str]) -> None:
    """Have ingest report for each dataset that one of its sources is stalled, and why."""
    reply = StuckReply(sources=[StuckReply.Source(dataset_id=IDS[name], why=why) for name, why in sources])

    @contextmanager
    def opened(node: object, timeout: float) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Stuck=lambda request, timeout: reply)

    monkeypatch.setattr(clients, "ingest", opened)


def test_the_reasons_of_stalled_sources_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck(monkeypatch, ("flights", "a is stopped"), ("report", "b waits"), ("flights", "c waits"))
    assert cli.main(["list", "-o", "json"]) == 0
    problems = {row["alias"]: row["problem"] for row in json.loads(capsys.readouterr().out)}
    assert problems == {
        "flights": "a is stopped; c waits",
        "flights.late": None,
        "flights.worst": None,
        "report": "b waits",
    }


def test_datasets_are_listed_although_ingest_is_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def opened(node: object, timeout: float) -> Iterator[None]:
        raise Unavailable(what="ingest", why="no server answers")
        yield

    monkeypatch.setattr(clients, "ingest", opened)
    assert cli.main(["list", "-o", "json"]) == 0
    assert {row["problem"] for row in json.loads(capsys.readouterr().out)} == {None}


def ids(*names: str) -> list[str]:
    return [IDS[name] for name in names]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], ["flights", "flights.late", "flights.worst", "report"]),
        (["FLIGHTS.%"], ["flights.late", "flights.worst"]),
        (["%t", "flights"], ["flights", "flights.worst", "report"]),
        (["trains.%"], []),
    ],
)
def test_a_list_has_the_datasets_that_match_any_pattern(
    patterns: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", "-o", "json", *patterns]) == 0
    assert [row["alias"] for row in json.loads(capsys.readouterr().out)] == names


def test_a_problem_is_cut_short_in_the_table_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "a column that is very " + "long " * 50 + "\nand a second line"
    stuck = wire.DatasetSummary(
        alias="stuck", dataset_id="did:odf:1", kind="Derivative", head="f1", problem=problem
    )

    @contextmanager
    def opened(node: object = None) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(List=lambda request, timeout: wire.ListReply(datasets=[stuck]))

    monkeypatch.setattr(clients, "coordinator", opened)
    assert cli.main(["list"]) == 0
    assert "and a second line" in capsys.readouterr().out, "a pipe gets everything"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["list"]) == 0
    *_, row = capsys.readouterr().out.rstrip().splitlines()
    assert row.rstrip().endswith(" long…")
    assert len(row.partition("a column")[2]) <= MAX_CELL_CHARACTERS
    assert cli.main(["list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["problem"] == problem


def test_hashes_are_cut_short_before_the_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    (row,) = shorten_rows([{"problem": f"a has read block f1620{'ab' * 32} of b"}], "problem")
    assert row["problem"] == "a has read block f1620abababab… of b"


def test_a_pattern_without_a_match_is_refused(deleted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "a..%"]) == 1
    assert cli.main(["delete", "a..%", "--yes"]) == 1
    assert "which % matches anything" in capsys.readouterr().err
    assert cli.main(["delete", "trains.%", "--yes"]) == 1
    assert "no dataset has a name that matches trains.%" in capsys.readouterr().err
    assert deleted == []


def test_datasets_are_deleted_before_their_inputs(deleted: list[str]) -> None:
    assert cli.main(["delete", "report", "flights%", "Flights.late", IDS["flights"], "--yes"]) == 0
    assert deleted == ids("report", "flights.worst", "flights.late", "flights")


def test_datasets_that_read_themselves_or_each_other_can_be_deleted() -> None:
    known = [
        summary("flights", "flights"),
        summary("flights.late", "report"),
        summary("report", "flights.late"),
    ]
    assert [one.alias for one in deletable(known[:1], known)] == ["flights"]
    assert {one.alias for one in deletable(known, known)} == {"flights", "flights.late", "report"}


def test_nothing_is_deleted_if_another_dataset_reads_one(
    deleted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["delete", "flights%", "--yes"]) == 1
    assert "flights.worst is read by report" in capsys.readouterr().err
    assert cli.main(["delete", "flights", "--yes"]) == 1
    assert "flights is read by flights.late, flights.worst: delete its readers" in capsys.readouterr().err
    assert cli.main(["delete", "report", "nowhere", "--yes"]) == 1
    assert cli.main(["delete", "report@next", "--yes"]) == 1
    assert deleted == []


def test_the_confirmation_lists_all_names(
    deleted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    assert cli.main(["delete", "%"]) == 1
    assert "Delete report, flights.worst, flights.late, flights permanently?" in capsys.readouterr().err
    assert deleted == []
