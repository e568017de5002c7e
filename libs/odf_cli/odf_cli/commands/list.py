"""`odf list`: the node's datasets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from odf_cli import clients
from odf_cli.embedded.node_file import Node
from odf_cli.output import is_wide, output_option, print_rows, remark, shorten_rows
from odf_cli.rows import summary_row, with_stuck
from odf_common.errors import Unavailable
from odf_common.proto.odf.node.v1.coordinator_pb2 import ListRequest

COLUMNS = ("alias", "kind", "records", "blocks", "watermark", "updated")
# Left out first on a narrow terminal.
EXTRA = ("blocks", "updated", "kind", "late", "dropped", "waitsForInput")
LIST_VIEWS_TIMEOUT_SECONDS = 5  # to ask the views


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@output_option
def list_command(*, patterns: tuple[str, ...], output: str) -> None:
    """List datasets with their records, blocks and watermark. With PATTERN, only datasets whose names match.

    In a pattern, % matches anything. The table truncates a `problem`; `odf status DATASET` shows it in full. `late`
    counts rows that this node dropped because they arrived too late for a derivative; a transform repeated after a
    reset counts them again. `waitsForInput` is the input whose watermark or first record a derivative waits for;
    `odf status DATASET` says until when. `rejected` counts messages that could not be read as records and await a
    decision: see `odf rejected`. --wide adds id, head, lag and throughput.

    \b
    Example:
      odf list -w
      odf list 'flights.%'
      odf list --output json
    """
    is_shown = _filter(patterns)
    node = clients.this_node()
    with clients.coordinator(node) as coordinator:
        reply = coordinator.List(ListRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    shown = [dataset for dataset in reply.datasets if is_shown(dataset.alias)]
    stuck = clients.stuck_sources(node)
    rows = [with_stuck(summary_row(dataset), stuck, dataset.dataset_id) for dataset in shown]
    columns = COLUMNS + tuple(
        name
        for name in ("late", "rejected", "dropped", "waitsForInput", "problem")
        if any(row[name] for row in rows)
    )
    if is_wide():
        live = _live(node)
        for row in rows:
            view = live.get(str(row["id"]), {})
            row.update(recordsPerSecond=view.get("records_per_second"), lag=view.get("lag"))
        columns += ("recordsPerSecond", "lag", "id", "head")
    if output == "table" and not is_wide():
        rows = shorten_rows(rows, "problem")
    print_rows(rows, output, columns=columns, extra=EXTRA)


def _filter(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tests whether a name matches one of the patterns; without patterns, all names match."""
    if not patterns:
        return lambda _: True
    from odf_common.identity.dataset_refs import parse_alias, parse_pattern

    parsed = [parse_pattern(pattern) for pattern in patterns]
    return lambda name: any(pattern.matches(parse_alias(name)) for pattern in parsed)


def _live(node: Node) -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of the live view by dataset id; empty, with a remark, if it is unavailable."""
    try:
        return {
            dataset["dataset_id"]: dataset for dataset in clients.live_view(node, LIST_VIEWS_TIMEOUT_SECONDS)
        }
    except Unavailable as error:
        remark(str(error))
        return {}
