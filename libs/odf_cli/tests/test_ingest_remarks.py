"""What `odf ingest` prints in addition to the table: about its input, and about a committed or failed file."""

import io
import sys
from collections.abc import Callable

import pytest

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands import ingest
from odf_common.errors import InvalidInput, OdfError
from odf_common.proto.odf.node.v1.ingest_pb2 import PushReply


@pytest.mark.parametrize(
    ("file", "count", "line"),
    [
        ("a.csv", 1, "a.csv: 1 row is not a record of orders; the first: line 2: x"),
        ("-", 2, "standard input: 2 rows are not records of orders; the first: line 2: x"),
    ],
)
def test_rejected_rows_are_named_with_their_file(
    capsys: pytest.CaptureFixture[str], file: str, count: int, line: str
) -> None:
    reply = PushReply(rejected=count, rejected_reason="line 2: x")
    ingest._remark_on(ingest._Result(file=file, outcome="committed", reply=reply), "orders", "")
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[OdfError | None], None]:
    """Have a node commit each file, or refuse it with an error."""

    def pushed(error: OdfError | None) -> None:
        outcome = "refused" if error else "committed"
        monkeypatch.setattr(
            ingest, "_outcome", lambda *facts: ingest._Result(file=facts[2], outcome=outcome, error=error)
        )

    monkeypatch.setattr(clients, "this_node", lambda: None)
    return pushed


class Terminal(io.StringIO):
    """Standard input that is typed."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize(
    ("stdin", "files", "remark"),
    [
        (Terminal(), [], "reading records from the terminal; end with Ctrl-D\n"),
        (Terminal(), ["-"], "reading records from the terminal; end with Ctrl-D\n"),
        (Terminal(), [__file__], ""),
        (io.StringIO(), [], ""),
    ],
)
def test_records_that_are_typed_are_waited_for_aloud(
    answer: Callable[[OdfError | None], None],
    stdin: io.StringIO,
    files: list[str],
    remark: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    answer(None)
    assert cli.main(["ingest", "orders", *files]) == 0
    assert capsys.readouterr().err == remark


@pytest.mark.parametrize("size", [4, ingest.MIB, ingest.MIB + 1, 0])
def test_typed_records_are_ended_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed(io.RawIOBase):
        """What is typed: records, and the end of the input for each end that is asked for."""

        left = [b"r" * size] if size else []
        ends = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if not self.left or not self.left[0]:
                Typed.ends += 1
                return 0
            part, self.left[0] = self.left[0][: len(buffer)], self.left[0][len(buffer) :]
            buffer[: len(part)] = part
            return len(part)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Typed())))
    assert b"".join(ingest._chunks("-")) == b"r" * size
    assert Typed.ends == 1


def test_the_reason_of_a_failed_file_is_printed_once(
    answer: Callable[[OdfError | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(InvalidInput(text="none of its rows fits"))
    assert cli.main(["ingest", "orders", __file__]) == 1
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("none of its rows fits") == 1
