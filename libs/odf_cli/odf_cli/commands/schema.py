"""`odf schema [NAME]`: JSON Schemas of manifests, for editors and other validators; needs no node."""

from pathlib import Path

import click

from odf_cli.output import echo, output_option, print_object, print_rows
from odf_cli.suggestions import NameChoice
from odf_common.codec.json_schema import NAMES, about, schema_of, text_of


@click.command("schema")
@click.argument("name", required=False, type=NameChoice("a manifest or a kind of event", NAMES))
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Write all schemas to this folder."
)
@output_option
def command(*, name: str | None, folder: Path | None, output: str) -> None:
    """Print the JSON Schema (draft 2020-12) of a manifest or event kind; without NAME, list the kinds.

    \b
    Example:
      odf schema DatasetSnapshot > DatasetSnapshot.json
    """
    if folder is not None:
        if name is not None:
            raise click.UsageError("--folder writes all schemas; leave out NAME")
        folder.mkdir(parents=True, exist_ok=True)
        for schema in NAMES:
            (folder / f"{schema}.json").write_text(text_of(schema), encoding="utf-8")
    elif name is None:
        print_rows([{"name": name, "about": about(name)} for name in NAMES], output)
    elif output == "yaml":
        print_object(schema_of(name), output)
    else:
        # A schema is a tree, so `table` prints JSON.
        echo(text_of(name), is_line=False)
