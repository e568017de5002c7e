"""`odf schema`: names, one schema, all schemas in a folder."""

import json
from pathlib import Path

import pytest
import yaml

from odf_common.cli import main as cli
from odf_common.codec.json_schema import NAMES, schema_of, text_of


def test_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "-o", "json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(NAMES)


@pytest.mark.parametrize("name", ["DatasetSnapshot", "datasetsnapshot"])
def test_a_schema_is_printed_as_stored_in_its_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", name]) == 0
    assert capsys.readouterr().out == text_of("DatasetSnapshot")


def test_a_schema_is_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "SetInfo", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == schema_of("SetInfo")


def test_all_schemas_are_written_into_a_folder(tmp_path: Path) -> None:
    assert cli.main(["schema", "--folder", str(tmp_path / "new")]) == 0
    assert {file.name: file.read_text() for file in (tmp_path / "new").iterdir()} == {
        f"{name}.json": text_of(name) for name in NAMES
    }


@pytest.mark.parametrize("arguments", [["SetInf"], ["SetInfo", "--folder", "x"]])
def test_an_unknown_name_and_a_folder_for_one_schema_are_misuse(arguments: list[str]) -> None:
    assert cli.main(["schema", *arguments]) == 2
