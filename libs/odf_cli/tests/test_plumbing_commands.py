"""`odf block` and `odf parse-ref`: what they print."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from odf_cli.commands import block, parse_ref
from odf_common.errors import InvalidInput

VECTORS = json.loads((Path(__file__).parents[3] / "tests" / "vectors" / "metadata-blocks.json").read_text())
VECTOR = VECTORS[6]


@pytest.fixture
def content(tmp_path: Path) -> Path:
    file = tmp_path / "content.json"
    file.write_text(json.dumps(VECTOR["block"]))
    return file


@pytest.mark.parametrize(("options", "version"), [([], 3), (["--version", "3"], 3), (["--version", "2"], 2)])
def test_encode_prints_hash_and_file(content: Path, options: list[str], version: int) -> None:
    result = CliRunner().invoke(block.command, ["encode", *options, str(content), str(content)])
    assert result.output == f"{VECTOR[f'version{version}']['hash']}  {content}\n" * 2


def test_encode_raw_writes_the_bytes_that_decode_shows(content: Path, tmp_path: Path) -> None:
    raw = CliRunner().invoke(block.command, ["encode", "--version", "2", "--raw", str(content)]).stdout_bytes
    assert raw.hex() == VECTOR["version2"]["manifest_hex"]
    encoded = tmp_path / "block"
    encoded.write_bytes(raw)
    shown = CliRunner().invoke(block.command, ["decode", str(encoded)])
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(shown.output)
    again = CliRunner().invoke(block.command, ["encode", str(manifest)])
    assert again.output == f"{VECTOR['version2']['hash']}  {manifest}\n"


def test_encode_reads_standard_input() -> None:
    result = CliRunner().invoke(block.command, ["encode", "-"], input=json.dumps(VECTOR["block"]))
    assert result.output == f"{VECTOR['version3']['hash']}  -\n"


def test_decode_separates_blocks_as_documents(tmp_path: Path) -> None:
    files = []
    for number, vector in enumerate(VECTORS[:3]):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(bytes.fromhex(vector["version3"]["manifest_hex"]))
    result = CliRunner().invoke(block.command, ["decode", *map(str, files)])
    assert result.output.count("---\nkind: MetadataBlock\n") == 2


def test_decode_names_the_invalid_file(content: Path) -> None:
    result = CliRunner().invoke(block.command, ["decode", str(content)])
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception).startswith(f"{content}: ")


def test_parse_ref_prints_one_line_per_argument() -> None:
    texts = ["foo", "a/b", "r/a/b", "http://x", "foo:bar", "-x", "\udcff"]
    result = CliRunner().invoke(parse_ref.command, ["--", *texts])
    assert result.exit_code == 0
    answers = [json.loads(line) for line in result.output.splitlines()]
    assert answers[:4] == [
        {"kind": "alias", "dataset": "foo"},
        {"kind": "ambiguousAlias", "accountOrRepo": "a", "dataset": "b"},
        {"kind": "remoteAlias", "repo": "r", "account": "a", "dataset": "b"},
        {"kind": "url", "url": "http://x"},
    ]
    assert [list(answer) for answer in answers[4:]] == [["error"]] * 3
