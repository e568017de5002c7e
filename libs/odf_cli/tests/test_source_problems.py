"""`odf source show` names what `odf status` names: the problem of a source, else that of its dataset."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from odf_testing.fake_services import fake_service

from odf_cli.commands.source import KAFKA_ADVICE
from odf_cli.main import odf
from odf_common.adapters.local.outage_files import Outage, OutageFile
from odf_common.errors import Unavailable
from odf_common.proto.odf.node.v1.coordinator_pb2 import DatasetSummary
from odf_common.proto.odf.node.v1.ingest_pb2 import SourcesReply

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
