"""`odf status`: the node's parts, where they are, and how the datasets stand."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any, Final

import click

from odf_common.errors import NotFound, OdfError
from odf_common.proto.odf.node.v1.coordinator_pb2 import DatasetSummary, ListRequest
from odf_common.runtime import ask
from odf_common.runtime.node import Node, read_node
from odf_common.runtime.output import output_option, print_object, print_rows, shortened
from odf_common.runtime.settings import load

TIMEOUT: Final = 1.0  # seconds
COLUMNS: Final = ("dataset", "records", "watermark", "records/s", "waiting")
SELDOM: Final = (
    "at work",
    "late",
    "dropped",
    "problem",
)  # columns that are there when there is something in them


@click.command("status", short_help="Show the node's parts.")
@click.argument("names", nargs=-1, metavar="[DATASET]...")
@output_option
def command(*, names: tuple[str, ...], output: str) -> None:
    """Show the node's parts, where they are, and how the datasets stand; with DATASETs, all that is known of those.

    `waiting` counts messages that lie in a dataset's topics, `records/s` is that of the last minute, and `late` counts
    rows that came too late for a derivative and were dropped. Of a problem the table has the beginning.

    \b
    Example:
      odf status --output json
      odf status flights.late
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    node = read_node(load().home)
    datasets = with_standing(_datasets(node), _summaries(node))
    stuck = ask.stuck_sources(node)
    for one in datasets:
        one["problem"] = one["problem"] or stuck.get(one["dataset_id"])
    if names:
        _print_each([_named(datasets, name) for name in names], output)
    elif output == "table":
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
        shown = [_shown(one) for one in datasets]
        columns = COLUMNS + tuple(name for name in SELDOM if any(one[name] for one in shown))
        print_rows(shortened(shown, "problem"), "table", columns=columns)


def _print_each(datasets: list[dict[str, Any]], output: str) -> None:
    if output != "table":
        print_rows(datasets, output)
        return
    for one in datasets:
        print_object(one, "table")


def _named(datasets: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the dataset with this name or id; raises `NotFound`."""
    for one in datasets:
        if name.lower() == one["alias"].lower() or name == one["dataset_id"]:
            return one
    raise NotFound(what=f"dataset {name}")


def _shown(one: dict[str, Any]) -> dict[str, object]:
    """Return a dataset as a row of the table."""
    at_work = one.get("stage")
    if at_work and one.get("total"):
        at_work = f"{at_work}, {one['rows']} of {one['total']} rows"
    return {
        "dataset": one["alias"],
        "records": one["records"],
        "watermark": one.get("watermark"),
        "records/s": one.get("records_per_second"),
        "waiting": one.get("lag"),
        "at work": at_work,
        "late": one["late"],
        "dropped": one["dropped"],
        "problem": one["problem"],
    }


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
        with ask.coordinator(node, patience=0) as coordinator:
            return list(coordinator.List(ListRequest(), timeout=TIMEOUT).datasets)
    except OdfError:
        return []


def with_standing(
    seen: Iterable[dict[str, Any]], summaries: Iterable[DatasetSummary]
) -> list[dict[str, Any]]:
    """Return what the views show, with each dataset's problem, and whether it was dropped; None where not known."""
    unknown = {"late": None, "dropped": None, "problem": None}
    rows = {str(one["dataset_id"]): {**one, "records": _count(one["last_offset"]), **unknown} for one in seen}
    for one in summaries:
        row = rows.setdefault(one.dataset_id, {"dataset_id": one.dataset_id, "alias": one.alias})
        row.setdefault("records", one.records if one.head else None)
        row.update(late=one.late, dropped=one.dropped, problem=one.problem or None)
    return list(rows.values())


def _count(last_offset: int | None) -> int:
    return 0 if last_offset is None else last_offset + 1
