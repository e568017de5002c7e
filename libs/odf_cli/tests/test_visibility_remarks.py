import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from odf_testing.builders import a_polling_source
from odf_testing.fake_services import fake_service
from odf_testing.story import derivative

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands.pull import REPORT_INTERVAL_SECONDS, Remarks, progress_text
from odf_cli.output import prefix_dataset
from odf_common.codec.flatbuffers import encode_event
from odf_common.errors import Unavailable
from odf_common.metadata.events import SetPollingSource
from odf_common.proto.odf.node.v1 import access_pb2 as access
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1.coordinator_pb2 import PullItem
from odf_common.proto.odf.node.v1.sync_pb2 import SyncPullItem

HEAD = "f1620" + "a" * 64
TRANSFORM = """\
kind: SetTransform
inputs: [{datasetRef: cities, alias: cities}]
transform: {kind: Sql, engine: spark, query: SELECT * FROM cities}
"""


class FakeNode:
    """A node whose dataset `copy` comes from the private `cities`, and whose `last` reads `copy`."""

    outcome = "added"
    has_sync = True
    published_visibility = ""

    def show(self, request: access.ShowAccessRequest, timeout: float) -> access.DatasetAccess:
        if not self.has_sync:
            raise Unavailable(what="sync", why="it is restarted")
        shown = access.DatasetAccess(dataset=request.ref, visibility="private")
        if request.ref == "copy" and self.published_visibility:
            shown.visibility = self.published_visibility
            shown.published_origins.append("cities")
        elif request.ref == "copy":
            shown.private_origins.append("cities")
        if request.with_derivatives:
            for name, visibility in (("last", "private"), ("other", "private"), ("chosen", "public")):
                shown.derivatives.add(dataset=name, visibility=visibility)
        return shown

    def change(self, request: access.ChangeAccessRequest, timeout: float) -> access.DatasetAccess:
        return self.show(access.ShowAccessRequest(ref=request.ref, with_derivatives=True), timeout)

    def add(self, *_: object, timeout: float) -> wire.AddReply:
        return wire.AddReply(
            results=[wire.AddReply.Result(alias=name, outcome=self.outcome) for name in ("copy", "towns")]
        )

    def summary(self, *_: object, timeout: float) -> wire.DatasetSummary:
        return wire.DatasetSummary(alias="copy", head=HEAD)

    def pull(self, request: object, timeout: float) -> Iterator[SyncPullItem]:
        yield SyncPullItem(alias="copy", state="blocks")
        yield SyncPullItem(alias="towns", state="updated", is_private=True)

    def push(self, request: object, timeout: float) -> Iterator[SyncPullItem]:
        yield SyncPullItem(alias="copy", state="comparing", is_private=True, target="file:///srv/copy")
        yield SyncPullItem(alias="copy", state="updated", target="file:///srv/copy")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    node = FakeNode()

    fake_service(monkeypatch, "access", ShowAccess=node.show, ChangeAccess=node.change)
    fake_service(
        monkeypatch,
        "coordinator",
        Add=node.add,
        CommitEvent=node.summary,
        Reset=node.summary,
        FastForward=node.summary,
        LastEvent=lambda *_, **__: wire.LastEventReply(),
    )
    fake_service(monkeypatch, "sync", Pull=node.pull, Push=node.push)
    monkeypatch.setattr(clients, "require_owners", lambda *_: None)
    monkeypatch.setattr(clients, "this_node", lambda: None)
    return node


def commands(folder: Path) -> list[list[str]]:
    """Return the commands by which a dataset may get another query."""
    manifest, event = folder / "copy.yaml", folder / "event.yaml"
    manifest.write_text(yaml.safe_dump(derivative("copy", {"cities": "cities"}, "SELECT * FROM cities")))
    event.write_text(TRANSFORM)
    return [
        ["add", str(manifest)],
        ["commit", "copy", str(event)],
        ["reset", "copy", HEAD, "--yes"],
        ["ref", "fast-forward", "copy@next"],
    ]


SAID = "copy is private here, since it comes from cities; `odf access set copy --visibility public`"


def test_a_dataset_that_is_private_because_of_its_new_query_is_named(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in commands(tmp_path):
        assert cli.main(arguments) == 0
        printed = capsys.readouterr()
        assert SAID in printed.err, arguments
        assert SAID not in printed.out
        assert "towns" not in printed.err


def test_a_dataset_that_stays_public_with_its_new_query_is_named(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = "copy is public, as it was published with cities; `odf access set copy --visibility private`"
    for node.published_visibility in ("public", "private", "unknown"):
        for arguments in commands(tmp_path):
            assert cli.main(arguments) == 0
            assert (expected in capsys.readouterr().err) == (node.published_visibility == "public")


def test_nothing_is_said_of_what_has_not_changed_and_without_sync(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.outcome = "unchanged"
    add, *others = commands(tmp_path)
    info = tmp_path / "info.yaml"
    info.write_text("{kind: SetInfo, description: cities}")
    event = others[0][-1]
    for arguments in (add, ["commit", "copy", str(info)], ["commit", "copy@next", event]):
        assert cli.main(arguments) == 0
        assert not capsys.readouterr().err
    node.outcome, node.has_sync = "added", False
    for arguments in (add, *others):
        assert cli.main(arguments) == 0
        assert not capsys.readouterr().err


def test_a_change_of_visibility_lists_the_derivatives_with_theirs(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["access", "set", "copy", "--visibility", "private", "-o", "json"]) == 0
    printed = capsys.readouterr()
    assert "derived from copy: private: last, other; public: chosen" in printed.err
    assert json.loads(printed.out)["privateOrigins"] == ["cities"]


def test_a_pull_that_makes_a_copy_private_names_it_and_its_derivatives(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pull", "http://node.example/towns"]) == 0
    said = capsys.readouterr().err
    assert (
        "towns is private here, since it may be private at its source, or was private here before; `odf access set towns --visibility public`"
        in said
    )
    assert "derived from towns: private: last, other; public: chosen" in said


def test_a_push_of_a_private_dataset_to_a_folder_warns(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["push", "copy", "--to", "file:///srv/copy"]) == 0
    said = capsys.readouterr().err
    assert "warning: copy is private here; whoever can read file:///srv/copy can read it there" in said


NAMED = "the parameter token of the URL (fetch.url)"


def pulled(monkeypatch: pytest.MonkeyPatch, source: SetPollingSource | None, state: str = "updated") -> None:
    def pull(_: object, timeout: float) -> Iterator[SyncPullItem]:
        yield SyncPullItem(alias="towns", state=state)

    def last(request: wire.LastEventRequest, timeout: float) -> wire.LastEventReply:
        assert (request.ref, request.kind) == ("towns", "SetPollingSource")
        if source is None:
            raise Unavailable(what="coordinator", why="it is restarted")
        return wire.LastEventReply(event=encode_event(source))

    fake_service(monkeypatch, "sync", Pull=pull)
    fake_service(monkeypatch, "coordinator", LastEvent=last)
    monkeypatch.setattr(clients, "require_owners", lambda *_: None)
    monkeypatch.setattr(clients, "this_node", lambda: None)
    assert cli.main(["pull", "http://example.org/towns", "-o", "json"]) == 0


@pytest.mark.parametrize(("state", "is_new"), [("updated", True), ("up-to-date", False)])
def test_credentials_of_a_pulled_chain_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, is_new: bool
) -> None:
    pulled(monkeypatch, a_polling_source("https://example.org/a?token=QTOK"), state)
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["exposed"] == NAMED
    warning = (
        f"warning: the chain of towns shows credentials to all who may read it: {NAMED}; its owner should"
    )
    assert (warning in printed.err) == is_new
    assert "QTOK" not in printed.out + printed.err


@pytest.mark.parametrize("source", [a_polling_source("https://example.org/a?token=${{ env.TOKEN }}"), None])
def test_other_chains_are_pulled_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: SetPollingSource | None
) -> None:
    pulled(monkeypatch, source)
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["exposed"] is None
    assert "warning" not in printed.err


WORKING = PullItem(alias="hourly", state="running", stage="computing", rows=3, total=5)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("hourly has read a block", "hourly has read a block"),
        ("the data of hourly is missing", "the data of hourly is missing"),
        ("hourly.late is read", "hourly: hourly.late is read"),
        ("no column a", "hourly: no column a"),
    ],
)
def test_an_error_names_its_dataset_once(error: str, text: str) -> None:
    assert prefix_dataset("hourly", error) == text


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (PullItem(alias="hourly", state="running"), "hourly: running"),
        (WORKING, "hourly: computing, 3 of 5 rows"),
        (PullItem(alias="hourly", state="running", stage="reading"), "hourly: reading"),
        (PullItem(alias="hourly", stage="writing", late=7), "hourly: writing, 7 late"),
    ],
)
def test_progress_is_described_in_words(item: PullItem, text: str) -> None:
    assert progress_text(item) == text


def test_without_a_terminal_progress_is_printed_periodically(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    remarks = Remarks(is_terminal=False, now=lambda: time[0])
    for seconds in (
        REPORT_INTERVAL_SECONDS - 1,
        REPORT_INTERVAL_SECONDS,
        REPORT_INTERVAL_SECONDS + 1,
        2 * REPORT_INTERVAL_SECONDS,
    ):
        time[0] = seconds
        remarks.show(WORKING)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [progress_text(WORKING)] * 2


def test_a_terminal_shows_progress_live_and_gets_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    remarks = Remarks(is_terminal=True, now=lambda: time[0])
    time[0] = 2 * REPORT_INTERVAL_SECONDS
    remarks.show(WORKING)
    assert capsys.readouterr().err == ""
