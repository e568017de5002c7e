"""`odf sql`: Spark SQL over datasets."""

import sys

import click

from odf_cli import clients
from odf_cli.output import output_option
from odf_cli.rows import arrow_table, print_records
from odf_cli.user_input import remark_on_typing
from odf_common.proto.odf.node.v1.coordinator_pb2 import SqlRequest


@click.command("sql")
@click.argument("query", required=False)
@click.option("-c", "--command", "option", metavar="QUERY", help="The query, as an option.")
@output_option
def command(*, query: str | None, option: str | None, output: str) -> None:
    """Query datasets with Spark SQL; without QUERY, read it from standard input. Put names with dots in backticks.

    \b
    Example:
      odf sql 'SELECT origin, count(*) AS n FROM `flights.late` GROUP BY origin'
    """
    if query is not None and option is not None:
        raise click.UsageError("give one query, as an argument or with -c")
    sql = option if query is None else query
    if sql is None:
        remark_on_typing("a query")
    text = sys.stdin.read() if sql is None else sql
    with clients.coordinator() as coordinator:
        table = arrow_table(
            part.ipc
            for part in coordinator.Query(SqlRequest(sql=text), timeout=clients.STREAM_TIMEOUT_SECONDS)
        )
    print_records(table, output)
