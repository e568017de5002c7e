"""`odf alias list` refuses a name of no dataset, as other commands do."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_common.errors import NotFound
from odf_common.proto.odf.node.v1 import sync_pb2 as wire


def test_the_aliases_of_no_dataset_are_not_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(request: wire.ListAliasesRequest, timeout: float) -> wire.ListAliasesReply:
        del timeout
        if request.is_strict and request.refs:
            raise NotFound(what=f"dataset {request.refs[0]}")
        return wire.ListAliasesReply()

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(ListAliases=listed)

    monkeypatch.setattr(clients, "sync", opened)

    assert cli.main(["alias", "list"]) == 0
    assert cli.main(["alias", "list", "nope"]) == 1
    assert "dataset nope does not exist" in capsys.readouterr().err
