"""`odf doctor`: what is wrong with this machine or node, and the remedy."""

from dataclasses import asdict

import click

from odf_cli.exit_codes import ExitCode
from odf_cli.output import output_option, print_rows
from odf_common.service.settings import load


@click.command("doctor", short_help="Check this machine and the node.")
@output_option
def command(output: str) -> int:
    """Check what a node needs, and the node if one is running: programs, versions, disk, memory, clock, ports, servers.

    The exit code is 1 if a check failed; warnings do not count.

    \b
    Example:
      odf doctor
      odf doctor --output json
    """
    from odf_cli.embedded.doctor_checks import FAILED, examine
    from odf_common.service.logging import configure_command

    configure_command()  # the checks import what logs
    rows = [asdict(finding) for finding in examine(load())]
    columns = (
        ("check", "state", "text", "remedy")
        if any(row["remedy"] for row in rows)
        else ("check", "state", "text")
    )
    print_rows(rows, output, columns=columns)
    return ExitCode.FAILED if any(row["state"] == FAILED for row in rows) else ExitCode.OK
