"""`odf config`: all settings with their values, secrets masked."""

import click

from odf_cli.output import output_option, print_rows
from odf_common.service.settings import describe_variables, load


@click.command("config", short_help="Show all settings.")
@output_option
def command(output: str) -> None:
    """Show all settings: environment variables with their values, secrets masked.

    \b
    Example:
      ODF_LOG_LEVEL=debug odf config --output json
    """
    values = load().shown()
    rows = [
        {"variable": name, "value": values[name], "meaning": meaning}
        for name, _, meaning in describe_variables()
    ]
    print_rows(rows, output)
