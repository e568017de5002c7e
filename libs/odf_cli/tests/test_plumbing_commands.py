import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click.testing import CliRunner

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.commands.plumbing import block_command, parse_ref_command
from odf_cli.main import main
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import physical_hash_of
from odf_common.proto.odf.node.v1.coordinator_pb2 import ArrowBytes, SqlRequest

VECTORS = json.loads((Path(__file__).parents[3] / "tests" / "vectors" / "metadata-blocks.json").read_text())
VECTOR = VECTORS[6]


@pytest.fixture
def content(tmp_path: Path) -> Path:
    file = tmp_path / "content.json"
    file.write_text(json.dumps(VECTOR["block"]))
    return file


@pytest.mark.parametrize(("options", "version"), [([], 3), (["--version", "3"], 3), (["--version", "2"], 2)])
def test_encode_prints_hash_and_file(content: Path, options: list[str], version: int) -> None:
    result = CliRunner().invoke(block_command, ["encode", *options, str(content), str(content)])
    assert result.output == f"{VECTOR[f'version{version}']['hash']}  {content}\n" * 2


def test_encode_raw_writes_the_bytes_that_decode_shows(content: Path, tmp_path: Path) -> None:
    raw = CliRunner().invoke(block_command, ["encode", "--version", "2", "--raw", str(content)]).stdout_bytes
    assert raw.hex() == VECTOR["version2"]["manifest_hex"]
    encoded = tmp_path / "block"
    encoded.write_bytes(raw)
    shown = CliRunner().invoke(block_command, ["decode", str(encoded)])
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(shown.output)
    again = CliRunner().invoke(block_command, ["encode", str(manifest)])
    assert again.output == f"{VECTOR['version2']['hash']}  {manifest}\n"


def test_encode_reads_standard_input() -> None:
    result = CliRunner().invoke(block_command, ["encode", "-"], input=json.dumps(VECTOR["block"]))
    assert result.output == f"{VECTOR['version3']['hash']}  -\n"


def test_decode_separates_blocks_as_documents(tmp_path: Path) -> None:
    files = []
    for number, vector in enumerate(VECTORS[:3]):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(bytes.fromhex(vector["version3"]["manifest_hex"]))
    result = CliRunner().invoke(block_command, ["decode", *map(str, files)])
    assert result.output.count("---\nkind: MetadataBlock\n") == 2


def test_decode_names_the_invalid_file(content: Path) -> None:
    result = CliRunner().invoke(block_command, ["decode", str(content)])
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception).startswith(f"{content}: ")


def test_parse_ref_prints_one_line_per_argument() -> None:
    texts = ["foo", "a/b", "r/a/b", "http://x", "foo:bar", "-x", "\udcff"]
    result = CliRunner().invoke(parse_ref_command, ["--", *texts])
    assert result.exit_code == 0
    answers = [json.loads(line) for line in result.output.splitlines()]
    assert answers[:4] == [
        {"kind": "alias", "dataset": "foo"},
        {"kind": "ambiguousAlias", "accountOrRepo": "a", "dataset": "b"},
        {"kind": "remoteAlias", "repo": "r", "account": "a", "dataset": "b"},
        {"kind": "url", "url": "http://x"},
    ]
    assert [list(answer) for answer in answers[4:]] == [["error"]] * 3


HASHES = Path(__file__).parents[3] / "tests" / "vectors" / "logical-hash"


def test_logical_hashes_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((HASHES / "expected.json").read_bytes())
    files = [str(HASHES / name) for name in expected]
    assert main(["hash", "logical", *files]) == 0
    lines = [f"{facts['multihash']}  {file}\n" for facts, file in zip(expected.values(), files, strict=True)]
    assert capsys.readouterr().out == "".join(lines)


def test_physical_hashes_are_those_of_the_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "any file"
    file.write_bytes(b"any bytes")
    assert main(["hash", "physical", str(file)]) == 0
    assert capsys.readouterr().out == f"{physical_hash_of(b'any bytes')}  {file}\n"


@pytest.mark.parametrize("which", ["logical", "physical"])
def test_a_file_that_cannot_be_hashed_is_named_and_the_others_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    good = str(HASHES / "date32.parquet")
    assert main(["hash", which, str(tmp_path / "missing"), good]) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith(f"  {good}\n")
    assert f"error: {tmp_path / 'missing'}" in printed.err


def test_a_file_that_is_not_parquet_has_no_logical_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text"
    file.write_text("not Parquet")
    assert main(["hash", "logical", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {file}: not a data slice: ")


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
