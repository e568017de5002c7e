"""`odf status`: the node's parts, where they are, and how the datasets stand."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any, Final

import click

from odf_common.errors import OdfError
from odf_common.proto.odf.node.v1.coordinator_pb2 import DatasetSummary, ListRequest
from odf_common.runtime import ask
from odf_common.runtime.node import Node, read_node
from odf_common.runtime.output import output_option, print_object, print_rows
from odf_common.runtime.settings import load

TIMEOUT: Final = 1.0  # seconds


@click.command("status", short_help="Show the node's parts.")
@output_option
def command(output: str) -> None:
    """Show the node's parts, where they are, and how the datasets stand.

    \b
    Example:
      odf status --output json
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    node = read_node(load().home)
    datasets = with_standing(_datasets(node), _summaries(node))
    if output == "table":
        _print_tables(node, datasets)
    else:
        print_object({**node.to_json(), "datasets": datasets}, output)


def _print_tables(node: Node, datasets: list[dict[str, Any]]) -> None:
    addresses = {"home": str(node.home), "kafka": node.kafka, "redis": node.redis, "engine": node.engine}
    print_object({**addresses, "http": node.http, "views": node.views}, "table")
    rows = [
        {
            "part": part.name,
            "pid": part.pid,
            "state": part.state,
            "grpc": node.grpc.get(part.name),
            "metrics": node.metrics.get(part.name),
        }
        for part in (*node.services, *node.parts)
    ]
    print_rows(rows, "table")
    if datasets:
        columns: tuple[str, ...] = ("alias", "last_offset", "watermark", "records_per_second", "lag", "stage")
        columns += tuple(name for name in ("late", "dropped", "problem") if any(one[name] for one in datasets))
        print_rows(datasets, "table", columns=columns)


def _datasets(node: Node) -> list[dict[str, Any]]:
    """Return what the views know of the datasets; nothing while they cannot be reached."""
    if node.views is None:
        return []
    try:
        with urllib.request.urlopen(f"{node.views}/datasets", timeout=TIMEOUT) as answer:  # noqa: S310 - our own http URL
            held: list[dict[str, Any]] = json.load(answer)
    except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
        return []
    return held


def _summaries(node: Node) -> list[DatasetSummary]:
    """Return what the coordinator knows of the datasets; nothing while it cannot be reached."""
    try:
        with ask.coordinator(node) as coordinator:
            return list(coordinator.List(ListRequest(), timeout=TIMEOUT).datasets)
    except OdfError:
        return []


def with_standing(
    seen: Iterable[dict[str, Any]], summaries: Iterable[DatasetSummary]
) -> list[dict[str, Any]]:
    """Return what the views show, with each dataset's problem, and whether it was dropped; None where not known."""
    rows = {str(one["dataset_id"]): {**one, "late": None, "dropped": None, "problem": None} for one in seen}
    for one in summaries:
        row = rows.setdefault(one.dataset_id, {"dataset_id": one.dataset_id, "alias": one.alias})
        row.update(late=one.late, dropped=one.dropped, problem=one.problem or None)
    return list(rows.values())
