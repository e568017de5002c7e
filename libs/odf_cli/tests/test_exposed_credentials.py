"""A pull warns of a chain that shows credentials, without them."""

import json
from collections.abc import Iterator

import pytest
from odf_testing.builders import a_polling_source
from odf_testing.fake_services import fake_service

from odf_cli import clients
from odf_cli import main as cli
from odf_common.codec.flatbuffers import encode_event
from odf_common.errors import Unavailable
from odf_common.metadata.events import SetPollingSource
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1.sync_pb2 import SyncPullItem

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
