"""`odf tail DATASET`: the last records."""

import click

from odf_common.proto.odf.node.v1.coordinator_pb2 import TailRequest
from odf_common.runtime import ask
from odf_common.runtime.output import output_option
from odf_common.runtime.tables import arrow_table, print_records


@click.command("tail")
@click.argument("dataset")
@click.option(
    "-n",
    "--records",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Maximum number of records.",
)
@output_option
def command(*, dataset: str, records: int, output: str) -> None:
    """Show a dataset's last records, in offset order.

    \b
    Example:
      odf tail flights.late -n 3
      odf tail flights.late -n 3 --output json
    """  # noqa: D301 - click's marker for text that must not be wrapped
    with ask.coordinator() as coordinator:
        parts = coordinator.Tail(TailRequest(ref=dataset, records=records), timeout=ask.WORK)
        table = arrow_table(part.ipc for part in parts)
    print_records(table, output)
