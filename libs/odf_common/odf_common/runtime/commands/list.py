"""`odf list`: the node's datasets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from odf_common.identity.refs import Pattern, parse_alias, parse_pattern
from odf_common.proto.odf.node.v1.coordinator_pb2 import ListRequest
from odf_common.runtime import ask
from odf_common.runtime.node import Node
from odf_common.runtime.output import output_option, print_rows, remark, shortened
from odf_common.runtime.tables import summary_row

COLUMNS = ("alias", "kind", "records", "blocks", "watermark", "updated")
PATIENCE = 5  # seconds to ask the views


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("-w", "--wide", is_flag=True, help="Also id, head, and the live view: lag and throughput.")
@output_option
def command(*, patterns: tuple[str, ...], wide: bool, output: str) -> None:
    """List datasets with records, blocks and watermark; of those with PATTERNs, the ones named like any of them.

    In a pattern % stands for anything. Why one stands still is cut short in the table; `odf status DATASET` has all.
    `late` counts the rows of inputs that came too late for a derivative and were dropped, by the transforms of this
    node; one that was run again after a reset counted again.

    \b
    Example:
      odf list -w
      odf list 'flights.%'
      odf list --output json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    wanted = [parse_pattern(pattern) for pattern in patterns]
    node = ask.this_node()
    with ask.coordinator(node) as coordinator:
        reply = coordinator.List(ListRequest(), timeout=ask.ANSWER)
    shown = [one for one in reply.datasets if not wanted or _is_like(wanted, one.alias)]
    stuck = ask.stuck_sources(node)
    rows = [summary_row(one) for one in shown]
    for row in rows:
        row["problem"] = row["problem"] or stuck.get(str(row["id"]))
    columns = COLUMNS + tuple(
        name for name in ("late", "dropped", "problem") if any(row[name] for row in rows)
    )
    if wide:
        live = _live(node)
        for row in rows:
            seen = live.get(str(row["id"]), {})
            row.update(recordsPerSecond=seen.get("records_per_second"), lag=seen.get("lag"))
        columns += ("recordsPerSecond", "lag", "id", "head")
    print_rows(shortened(rows, "problem") if output == "table" else rows, output, columns=columns)


def _is_like(patterns: Sequence[Pattern], alias: str) -> bool:
    name = parse_alias(alias)
    return any(pattern.matches(name) for pattern in patterns)


def _live(node: Node) -> Mapping[str, Mapping[str, Any]]:
    """Return the view of the notifications by dataset id; empty, with a remark, when it cannot be had."""
    from urllib.request import urlopen

    try:
        with urlopen(f"{node.views}/datasets", timeout=PATIENCE) as answer:  # noqa: S310 - our own node
            return {one["dataset_id"]: one for one in json.load(answer)}
    except (OSError, ValueError) as error:
        remark(f"no live view: {error}")
        return {}
