import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from odf_testing.fake_services import fake_service

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands.pull import _remark_omitted
from odf_cli.commands.source import KAFKA_ADVICE
from odf_cli.embedded.node_file import Node, Part, write_node
from odf_cli.main import odf
from odf_common.adapters.local.outage_files import Outage, OutageFile
from odf_common.errors import Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.coordinator_pb2 import DatasetSummary, ListReply
from odf_common.proto.odf.node.v1.ingest_pb2 import (
    FutureRecords,
    FutureReply,
    PollsReply,
    SourcesReply,
    StuckReply,
)

SINCE = "2026-01-01T10:00:00Z"
NS = Timestamp.parse(SINCE).ns


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with a part and three datasets that are stuck."""
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    services = (
        Part(name="sync", pid=1, state="ready", since=SINCE),
        Part(name="verifier", pid=None, state="restarting", since=SINCE),
    )
    write_node(Node(home=tmp_path, pid=os.getpid(), services=services))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "verifier.log").write_text(
        '{"event": "cannot start", "why": "no", "level": "error"}\n'
    )
    datasets = [
        DatasetSummary(alias="fine", dataset_id="1", head="h"),
        DatasetSummary(
            alias="late", dataset_id="2", head="h", problem="engine gone", since=NS, remedy="fix it"
        ),
        DatasetSummary(alias="root", dataset_id="3", head="h"),
        DatasetSummary(
            alias="bad", dataset_id="4", head="h", rejected=7, rejected_reason="no number", rejected_since=NS
        ),
        DatasetSummary(
            alias="open",
            dataset_id="5",
            head="h",
            exposed="the password in the URL",
            exposed_remedy="replace it",
        ),
    ]
    source = StuckReply.Source(
        dataset_id="3", source_name="default", why="topic replaced", advice="resume it", since=NS
    )

    far = FutureReply.Source(
        dataset_id="1",
        alias="fine",
        records=FutureRecords(records=2, offset=7, time="2999-01-01T00:00:00Z"),
    )
    poll = PollsReply.Poll(dataset_id="1", interval=60, state="idle", last=SINCE, next="2026-01-01T10:01:00Z")

    @contextmanager
    def coordinator(node: object, timeout: float) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(List=lambda request, timeout: ListReply(datasets=datasets))

    @contextmanager
    def ingest(node: object, timeout: float) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            Stuck=lambda request, timeout: StuckReply(sources=[source]),
            Polls=lambda request, timeout: PollsReply(polls=[poll]),
            Future=lambda request, timeout: FutureReply(sources=[far]),
        )

    monkeypatch.setattr(clients, "coordinator", coordinator)
    monkeypatch.setattr(clients, "ingest", ingest)
    monkeypatch.setattr(clients, "require_health", lambda node, service: None)
    return tmp_path


@pytest.mark.usefixtures("answers")
def test_every_problem_is_shown_with_its_start_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 0
    shown = capsys.readouterr().out
    exposed = "its chain shows credentials to all who may read it: the password in the URL"
    assert f"\nopen\n  {exposed}\n  → replace it\n" in shown
    for of, problem, remedy in (("late", "engine gone", "fix it"), ("root", "topic replaced", "resume it")):
        assert f"\n{of}, since {SINCE}\n  {problem}\n  → {remedy}\n" in shown
    assert f"\nverifier, since {SINCE}\n  is restarting; error: cannot start why=no\n  → Its log is " in shown
    assert (
        f"\nbad, since {SINCE}\n  7 messages were rejected; the first: no number\n  → `odf rejected list bad`"
        in shown
    )
    assert "\nfine," not in shown
    assert "next 2026-01-01T10:01:00Z" in shown


@pytest.mark.usefixtures("answers")
def test_records_too_far_in_the_future_are_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "do not raise the watermark: 2, the first at offset 7 with 2999-01-01T00:00:00Z; if such times are meant, "
    assert cli.main(["status"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("fine: records later than now by more than maxFuture, which ")
    assert f"{line}`odf source set fine maxFuture=none`" in said
    assert cli.main(["status", "fine", "late", "--output", "json"]) == 0
    fine, late = json.loads(capsys.readouterr().out)
    assert line in fine["future"]
    assert late["future"] is None
    row = {"dataset": "fine", "late": 0, "waitsFor": None, "rejected": 0, "future": fine["future"]}
    _remark_omitted(row)
    assert capsys.readouterr().err == said


def test_a_coordinator_that_does_not_answer_is_a_problem(
    answers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def coordinator(node: object, timeout: float) -> Iterator[None]:
        raise Unavailable(what="coordinator", why="no answer in time")
        yield

    monkeypatch.setattr(clients, "coordinator", coordinator)
    write_node(
        Node(home=answers, pid=os.getpid(), services=(Part(name="coordinator", pid=1, state="ready"),))
    )
    assert cli.main(["status"]) == 0
    said = capsys.readouterr().out
    assert "\ncoordinator\n  does not answer: " in said
    assert "no answer in time; the datasets shown are incomplete" in said


def test_the_supervisors_report_on_a_part_is_shown_instead_of_its_log(
    answers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = Part(
        name="verifier", pid=7, state="unresponsive", since=SINCE, problem="no answer", remedy="kill it"
    )
    write_node(Node(home=answers, pid=os.getpid(), services=(silent,)))
    assert cli.main(["status"]) == 0
    assert (
        f"\nverifier, since {SINCE}\n  is unresponsive; no answer\n  → kill it\n" in capsys.readouterr().out
    )


@pytest.mark.usefixtures("answers")
def test_json_output_has_the_same_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "-o", "json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert [one["of"] for one in held["problems"]] == ["verifier", "late", "root", "bad", "open"]
    rows = {one["alias"]: one for one in held["datasets"]}
    assert (rows["root"]["problem"], rows["root"]["since"], rows["root"]["remedy"]) == (
        "topic replaced",
        SINCE,
        "resume it",
    )
    assert rows["fine"]["problem"] is None
    assert rows["fine"]["poll"] == {
        "interval": 60,
        "state": "idle",
        "last": SINCE,
        "next": "2026-01-01T10:01:00Z",
    }
    assert "poll" not in rows["late"]
    assert cli.main(["status", "late", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["remedy"] == "fix it"


def test_a_full_disk_is_the_first_problem(
    answers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=5, f_frsize=4096))
    assert cli.main(["status", "--output", "json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["problems"]
    assert (first["of"], first["problem"]) == ("disk", f"disk full: 20 KiB are free at {answers}")
    assert "`odf delete DATASET` still works" in first["remedy"]
    assert "disk" not in {one["of"] for one in others}


REFUSED = DatasetSummary(
    problem="its preprocess would be refused today: GROUP BY cannot be used",
    remedy="commit the source again: `odf commit tills FILE`",
)


def shown(
    monkeypatch: pytest.MonkeyPatch, summary: DatasetSummary | None, *whys: str
) -> list[list[str | None]]:
    """Return why and advice of each source, as JSON has them."""

    def describe(*_: object, **__: object) -> DatasetSummary:
        if summary is None:
            raise Unavailable(what="the coordinator")
        return summary

    sources = [SourcesReply.Source(name=f"s{number}", why=why) for number, why in enumerate(whys)]
    reply = SourcesReply(sources=sources)
    fake_service(monkeypatch, "ingest", ShowSources=lambda *_, **__: reply)
    fake_service(monkeypatch, "coordinator", Describe=describe)
    done = CliRunner().invoke(odf, ["source", "show", "tills", "--output", "json"])
    assert done.exit_code == 0, done.output
    return [[row["why"], row["advice"]] for row in json.loads(done.stdout)]


def test_a_problem_of_the_dataset_is_shown_for_sources_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, REFUSED, "", "is stopped") == [
        [REFUSED.problem, REFUSED.remedy],
        ["is stopped", None],
    ]


def test_a_source_that_waits_for_kafka_has_the_start_of_its_outage_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    for part, second in (("kafka", 7), ("kafka", 5), ("redis", 3)):
        since = f"2030-01-01T00:00:0{second}Z"
        seen = Outage(part=part, seen_by="sync", since=since, why="mute")
        OutageFile(tmp_path, f"{part}{second}").write([seen])
    sources = [
        SourcesReply.Source(name="a", state="retrying", why="Kafka cannot be reached"),
        SourcesReply.Source(name="b", state="retrying", since="2029-01-01T00:00:00Z", advice="wait"),
        SourcesReply.Source(name="c", state="elsewhere"),
    ]
    fake_service(monkeypatch, "ingest", ShowSources=lambda *_, **__: SourcesReply(sources=sources))
    fake_service(monkeypatch, "coordinator", Describe=lambda *_, **__: DatasetSummary())
    done = CliRunner().invoke(odf, ["source", "show", "tills", "--output", "json"])
    assert [(row["since"], row["advice"]) for row in json.loads(done.stdout)] == [
        ("2030-01-01T00:00:05Z", KAFKA_ADVICE),
        ("2029-01-01T00:00:00Z", "wait"),
        (None, None),
    ]


def test_sources_are_shown_while_the_coordinator_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, None, "") == [[None, None]]
    assert shown(monkeypatch, DatasetSummary(), "") == [[None, None]]
