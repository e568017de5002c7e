"""`odf schema`: names, one schema, all schemas in a folder."""

import json
from pathlib import Path

import click
import pytest
import yaml

from odf_cli import main as cli
from odf_cli.commands.schema import command
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


def test_a_folder_for_one_schema_is_misuse() -> None:
    assert cli.main(["schema", "SetInfo", "--folder", "x"]) == 2


@pytest.mark.parametrize(
    ("name", "hint"), [("SetInf", "did you mean SetInfo?\n"), ("xyz", f"choose from {', '.join(NAMES)}\n")]
)
def test_an_unknown_name_is_misuse_with_a_proposal(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["schema", name]) == 2
    assert capsys.readouterr().err.endswith(f"{name!r} is not a manifest or a kind of event; {hint}")


def test_help_shows_the_argument_and_not_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: odf schema [OPTIONS] [NAME]\n")


def test_a_shell_completes_names_whatever_their_case() -> None:
    parameter = command.params[0]
    items = parameter.type.shell_complete(click.Context(command), parameter, "seta")
    assert [item.value for item in items] == ["SetAttachments"]
