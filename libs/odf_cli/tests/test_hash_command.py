import json
from pathlib import Path

import pytest

from odf_cli.main import main
from odf_common.hashing.physical import physical_hash_of

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "logical-hash"


def test_logical_hashes_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((VECTORS / "expected.json").read_bytes())
    files = [str(VECTORS / name) for name in expected]
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
    good = str(VECTORS / "date32.parquet")
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
