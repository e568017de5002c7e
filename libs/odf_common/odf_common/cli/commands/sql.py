"""`odf sql`: Spark SQL over datasets."""

import sys

import click

from odf_common.cli import clients
from odf_common.cli.output import output_option
from odf_common.cli.rows import arrow_table, print_records
from odf_common.proto.odf.node.v1.coordinator_pb2 import SqlRequest


@click.command("sql")
@click.option("-c", "--command", "query", metavar="QUERY", help="The query. Default: read standard input.")
@output_option
def command(*, query: str | None, output: str) -> None:
    """Query datasets with Spark SQL. Put names with dots in backticks.

    \b
    Example:
      odf sql -c 'SELECT origin, count(*) AS n FROM `flights.late` GROUP BY origin'
    """
    text = sys.stdin.read() if query is None else query
    with clients.coordinator() as coordinator:
        table = arrow_table(
            part.ipc
            for part in coordinator.Query(SqlRequest(sql=text), timeout=clients.STREAM_TIMEOUT_SECONDS)
        )
    print_records(table, output)
