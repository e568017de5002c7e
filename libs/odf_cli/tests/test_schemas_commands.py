"""`odf schema` and `odf explain` print the schemas of manifests, events and resources, without a node."""

import json
from pathlib import Path

import click
import pytest
import yaml

from odf_cli import main as cli
from odf_cli.commands.schemas import SCHEMAS, schema_command
from odf_common.codec.json_schema import NAMES, schema_of, schema_text, text_of
from odf_common.resources.resource_schemas import schemas_by_name


def test_all_schemas_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "-o", "json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [*NAMES, *schemas_by_name()]


@pytest.mark.parametrize("name", ["DatasetSnapshot", "datasetsnapshot"])
def test_a_schema_is_printed_as_stored_in_its_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", name]) == 0
    assert capsys.readouterr().out == text_of("DatasetSnapshot")


@pytest.mark.parametrize("name", ["Dataset", "dataset/v1alpha1/Dataset"])
def test_the_schema_of_a_type_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", name]) == 0
    assert capsys.readouterr().out == schema_text(schemas_by_name()["dataset/v1alpha1/Dataset"])


def test_a_schema_is_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "SetInfo", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == schema_of("SetInfo")


def test_all_schemas_are_written_into_a_folder(tmp_path: Path) -> None:
    assert cli.main(["schema", "--folder", str(tmp_path / "new")]) == 0
    for name, schema in SCHEMAS.items():
        assert (tmp_path / "new" / f"{name}.json").read_text("utf-8") == schema_text(schema)
    assert len(list((tmp_path / "new").rglob("*.json"))) == len(SCHEMAS)


def test_a_folder_for_one_schema_is_misuse() -> None:
    assert cli.main(["schema", "SetInfo", "--folder", "x"]) == 2


@pytest.mark.parametrize(
    ("name", "hint"), [("SetInf", "did you mean SetInfo?\n"), ("xyz", "`odf schema` lists them\n")]
)
def test_an_unknown_name_is_misuse_with_a_proposal(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["schema", name]) == 2
    what = "a manifest, a kind of event or a type of resource"
    assert capsys.readouterr().err.endswith(f"{name!r} is not {what}; {hint}")


def test_help_shows_the_argument_and_not_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: odf schema [OPTIONS] [NAME]\n")


def test_a_shell_completes_names_whatever_their_case() -> None:
    parameter = schema_command.params[0]
    items = parameter.type.shell_complete(click.Context(schema_command), parameter, "seta")
    assert [item.value for item in items] == ["SetAttachments"]


def test_a_field_is_explained_with_its_default_and_the_kind_that_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["explain", "Source.spec.read.separator"]) == 0
    assert capsys.readouterr().out == (
        "Source.spec.read.separator (string, default ',', only Csv)\nOne ASCII character between values.\n"
    )


def test_a_type_is_explained_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "VariableSet.spec", "-o", "json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["required"], one["type"]) for one in explained["fields"]] == [
        ("variables", True, "map of Variable or string")
    ]


def test_a_field_that_does_not_exist_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "Source.spec.reed"]) == 1
    assert "Source.spec has no field 'reed'; did you mean read?" in capsys.readouterr().err


def test_an_unknown_type_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "Sorce"]) == 1
    assert capsys.readouterr().err == "error: $schema: unknown type 'Sorce'\nhint: did you mean Source?\n"
