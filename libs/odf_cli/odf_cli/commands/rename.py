"""`odf rename DATASET NAME`: only the name changes, because transforms refer to ids."""

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_object
from odf_cli.rows import summary_row
from odf_common.proto.odf.node.v1.coordinator_pb2 import RenameRequest


@click.command("rename")
@dataset_argument
@click.argument("name")
@output_option
def command(*, dataset: str, name: str, output: str) -> None:
    """Rename a dataset. Its id, chain, push topics and derivatives stay the same.

    On a multi-tenant node, the account in the new name owns it from then on, and must exist.

    \b
    Example:
      odf rename flights departures
    """
    clients.require_owners([name])
    with clients.coordinator() as coordinator:
        summary = coordinator.Rename(
            RenameRequest(ref=dataset, new_alias=name), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
    print_object(summary_row(summary), output)
