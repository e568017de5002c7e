"""`odf tail DATASET`: the last records."""

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option
from odf_cli.rows import arrow_table, print_records
from odf_cli.user_input import Count
from odf_common.proto.odf.node.v1.coordinator_pb2 import TailRequest


@click.command("tail")
@dataset_argument
@click.option(
    "-n",
    "--records",
    type=Count(1),
    default=10,
    show_default=True,
    help="Maximum number of records.",
)
@output_option
def tail_command(*, dataset: str, records: int, output: str) -> None:
    """Show a dataset's last records, in offset order.

    \b
    Example:
      odf tail flights.late -n 3
      odf tail flights.late -n 3 --output json
    """
    with clients.coordinator() as coordinator:
        parts = coordinator.Tail(
            TailRequest(ref=dataset, records=records), timeout=clients.STREAM_TIMEOUT_SECONDS
        )
        table = arrow_table(part.ipc for part in parts)
    print_records(table, output)
