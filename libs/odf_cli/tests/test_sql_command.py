"""Where `odf sql` takes its query from."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_common.proto.odf.node.v1.coordinator_pb2 import ArrowBytes, SqlRequest


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that a coordinator got, which answers each with one number."""
    asked = list[str]()
    sink = pa.BufferOutputStream()
    table = pa.table({"n": [1]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)

    def query(request: SqlRequest, timeout: float) -> Iterator[ArrowBytes]:
        del timeout
        asked.append(request.sql)
        yield ArrowBytes(ipc=sink.getvalue().to_pybytes())

    @contextmanager
    def opened() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(Query=query)

    monkeypatch.setattr(clients, "coordinator", opened)
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 3"))
    return asked


@pytest.mark.parametrize(
    ("arguments", "query"), [(["SELECT 1"], "SELECT 1"), (["-c", "SELECT 2"], "SELECT 2"), ([], "SELECT 3")]
)
def test_a_query_is_an_argument_an_option_or_the_input(
    asked: list[str], arguments: Sequence[str], query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sql", *arguments, "-o", "json"]) == 0
    assert asked == [query]
    assert '"n": 1' in capsys.readouterr().out


def test_two_queries_are_refused(asked: list[str]) -> None:
    assert cli.main(["sql", "SELECT 1", "-c", "SELECT 2"]) == 2
    assert asked == []


class Terminal(io.StringIO):
    """Standard input that is typed."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize(("arguments", "is_read"), [([], True), (["SELECT 1"], False)])
def test_a_query_that_is_typed_is_waited_for_aloud(
    asked: list[str],
    arguments: Sequence[str],
    is_read: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("SELECT 3"))
    assert cli.main(["sql", *arguments, "-o", "json"]) == 0
    assert capsys.readouterr().err == "reading a query from the terminal; end with Ctrl-D\n" * is_read
    assert len(asked) == 1


def test_a_query_that_is_piped_is_read_without_a_word(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sql", "-o", "json"]) == 0
    assert (asked, capsys.readouterr().err) == (["SELECT 3"], "")
