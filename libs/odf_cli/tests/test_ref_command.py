"""`odf ref list` over a coordinator with an unreadable reference."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire


def test_a_reference_that_cannot_be_read_is_listed_with_its_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    well = wire.RefItem(
        name="head", block="f1620", compared=wire.Comparison(relation="equal", common="f1620")
    )
    well.sequence_number = 0
    broken = wire.RefItem(name="next", problem="it is empty")

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(ListRefs=lambda request, timeout: wire.ListRefsReply(refs=[well, broken]))

    monkeypatch.setattr(clients, "coordinator", opened)

    assert cli.main(["ref", "list", "cities", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "head", "block": "f1620", "sequence_number": 0,
            "relation": "equal", "ahead": 0, "behind": 0, "common": "f1620", "problem": None,
        },
        {
            "name": "next", "block": None, "sequence_number": None,
            "relation": None, "ahead": None, "behind": None, "common": None, "problem": "it is empty",
        },
    ]  # fmt: skip
    assert cli.main(["ref", "list", "cities"]) == 0
    assert "it is empty" in capsys.readouterr().out
