"""Commands that print schemas of manifests, events and resources, and explain their fields; they need no node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from odf_cli.output import echo, output_option, print_object, print_rows, print_text
from odf_cli.suggestions import NameChoice
from odf_common.codec.json_schema import NAMES, Schema, schema_of, schema_text
from odf_common.errors import OdfError
from odf_common.resources.explanation import FieldExplanation, explain_field
from odf_common.resources.registry import CORE_TYPES, Types
from odf_common.resources.resource_schemas import resource_schemas, schema_name, schemas_by_name

SCHEMAS: Final[Mapping[str, Schema]] = {**{name: schema_of(name) for name in NAMES}, **schemas_by_name()}
TYPES: Final = {kind.short_name: schema_name(str(kind.uri)) for kind in CORE_TYPES}
_CHOICE: Final = NameChoice(
    "a manifest, a kind of event or a type of resource", (*SCHEMAS, *TYPES), hint="`odf schema` lists them"
)


@click.command("schema")
@click.argument("name", required=False, type=_CHOICE)
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Write all schemas to this folder."
)
@output_option
def schema_command(*, name: str | None, folder: Path | None, output: str) -> None:
    """Print the JSON Schema (draft 2020-12) of a manifest, event or resource; without NAME, list them.

    \b
    Example:
      odf schema DatasetSnapshot > DatasetSnapshot.json
      odf schema Source
      odf schema source/v1alpha1/Ingress
    """
    if folder is not None:
        if name is not None:
            raise click.UsageError("--folder writes all schemas; leave out NAME")
        for each, schema in SCHEMAS.items():
            path = folder / f"{each}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(schema_text(schema), encoding="utf-8")
    elif name is None:
        print_rows(
            [{"name": each, "about": schema["description"]} for each, schema in SCHEMAS.items()], output
        )
    elif output == "yaml":
        print_object(SCHEMAS[TYPES.get(name, name)], output)
    else:
        # A schema is a tree, so `table` prints JSON.
        echo(schema_text(SCHEMAS[TYPES.get(name, name)]), is_line=False)


def complete_path(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the types that begin with `incomplete`, or after a dot the fields below."""
    path, dot, rest = incomplete.rpartition(".")
    if not dot:
        return [one.short_name for one in Types() if one.short_name.lower().startswith(rest.lower())]
    type_name, *keys = path.split(".")
    try:
        found = explain_field(resource_schemas(), str(Types().of_schema(type_name).uri), keys)
    except OdfError:
        return []
    return [f"{path}.{one.name}" for one in found.fields if one.name.lower().startswith(rest.lower())]


@click.command("explain")
@click.argument("path", shell_complete=complete_path)
@output_option
def explain_command(*, path: str, output: str) -> None:
    """Explain a type of resource or a field: its type, default, allowed values, and the fields below.

    \b
    Example:
      odf explain Source
      odf explain Source.spec.ingress.Url
      odf explain Flow.spec.triggers.cron
    """
    type_name, *keys = path.split(".")
    kind = Types().of_schema(type_name)
    explanation = explain_field(resource_schemas(), str(kind.uri), keys)
    if output != "table":
        print_object(explanation.plain(), output)
        return
    facts = _facts(explanation)
    print_text(f"{explanation.name} ({', '.join(facts)})\n{explanation.about}")
    if explanation.fields:
        print_rows([_row(field) for field in explanation.fields], output)


def _facts(field: FieldExplanation) -> list[str]:
    return [
        field.type,
        *(["required"] if field.is_required else []),
        *([f"default {_as_text(field.default)}"] if field.default is not None else []),
        *([f"one of {', '.join(field.choices)}"] if field.choices else []),
        *([f"only {', '.join(field.kinds)}"] if field.kinds else []),
    ]


def _row(field: FieldExplanation) -> dict[str, object]:
    kind, *facts = _facts(field)
    return {"field": field.name, "type": kind, "facts": "; ".join(facts), "about": field.about}


def _as_text(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower()
