"""`odf status`: the node's parts, their addresses, problems, and the state of the datasets."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from odf_cli import clients
from odf_cli.embedded.node_file import Node
from odf_cli.embedded.part_states import SERVICE_REMEDY, located_node, remedy_of
from odf_cli.embedded.parts.log_excerpt import log_excerpt
from odf_cli.output import (
    echo,
    heading,
    is_wide,
    output_option,
    print_object,
    print_rows,
    print_text,
    remark,
    short,
    shorten_rows,
)
from odf_cli.rows import problem_of, with_stuck
from odf_common.errors import OdfError, Unavailable
from odf_common.metadata.scalars import Timestamp, record_count
from odf_common.proto.odf.node.v1.coordinator_pb2 import DatasetSummary, ListRequest
from odf_common.proto.odf.node.v1.ingest_pb2 import PollsReply
from odf_common.service.part_checks import why_silent
from odf_common.service.protection import VIEWS
from odf_common.service.settings import load

MAX_PROBLEM_CHARACTERS: Final = 300  # in the list of problems
NEARLY_FULL_BYTES: Final = 16 << 20  # a batch may need that much
AWAY: Final = frozenset({"unreachable", "unresponsive"})  # they would not answer in time
VIEWS_TIMEOUT_SECONDS: Final = 1.0
LIST_TIMEOUT_SECONDS: Final = 10.0  # thousands of datasets on a busy machine need more than one
COLUMNS: Final = ("dataset", "records", "watermark", "records/s", "waiting")
# Left out first on a narrow terminal.
EXTRA: Final = ("watermark", "records/s", "late", "dropped", "waits for")
# Columns shown only if not empty.
SELDOM: Final = ("running", "poll", "late", "rejected", "dropped", "waits for", "problem")


@click.command("status", short_help="Show the node's parts.")
@click.argument("names", nargs=-1, metavar="[DATASET]...")
@output_option
def status_command(*, names: tuple[str, ...], output: str) -> None:
    """Show the node's parts, its problems with what to do about each, and the datasets; with DATASETs, only those.

    `waiting` counts messages in a dataset's topics that are not ingested yet, `records/s` is the rate of the last
    minute, and `late` counts rows that were dropped because they arrived too late for a derivative. `rejected` counts
    messages that could not be read as records and await a decision: see `odf rejected`. `poll` says when a polling
    source that has an interval is polled next. `waits for` is the input whose watermark or first record a derivative
    needs for what it has read. Tables truncate a problem; `odf status DATASET` shows it in full, and until when a
    derivative waits.

    \b
    Example:
      odf status --output json
      odf status flights.late
    """
    node = located_node(load())
    silent: dict[str, OdfError] = {}
    away = {part.name for part in node.services if part.state in AWAY}
    stuck = {} if "ingest" in away else clients.stuck_sources(node, silent.__setitem__)
    views = [] if VIEWS in away else _datasets(node)
    rows = with_standing(views, [] if "coordinator" in away else _summaries(node, silent.__setitem__))
    polls = {} if "ingest" in away | silent.keys() else clients.polls(node)
    future = {} if "ingest" in away | silent.keys() else clients.future_records(node)
    datasets = [with_poll(with_stuck(row, stuck, str(row["dataset_id"])), polls) for row in rows]
    datasets = [{**row, "future": future.get(str(row["alias"]))} for row in datasets]
    problems = [*disk_problems(node.home), *part_problems(node, silent), *dataset_problems(datasets)]
    if names:
        _print_each([_find_dataset(datasets, name) for name in names], output)
    elif output == "table":
        _print_tables(node, datasets, problems)
    else:
        facts = node.to_json() | ({} if node.parts else {"pid": None})  # no supervisor runs it
        print_object({**facts, "datasets": datasets, "problems": problems}, output)


def disk_problems(home: Path) -> list[dict[str, object]]:
    """Return the problem that the disk of the home is full, if it is; this explains most other problems."""
    try:
        disk = os.statvfs(home)
    except OSError:  # the parts report what they cannot read
        return []
    free = disk.f_bavail * disk.f_frsize
    if free >= NEARLY_FULL_BYTES:
        return []
    return [
        {
            "of": "disk",
            "problem": f"disk full: {free >> 10} KiB are free at {home}",
            "since": None,
            "remedy": (
                "free space on the disk that holds the node's home, or enlarge it; `odf delete DATASET` still works, "
                "and commits then continue automatically"
            ),
        }
    ]


def part_problems(node: Node, silent: Mapping[str, OdfError]) -> list[dict[str, object]]:
    """Return a problem for each part that is not ready, with the time, the end of its log and the log's path.

    `silent` are the parts that did not answer, and why; the supervisor may report such a part as ready.
    """
    rows: list[dict[str, object]] = []
    for part in (*node.services, *node.parts):
        log = node.log(part.name)
        if part.state == "ready":
            if part.name in silent:
                problem = (
                    f"does not answer: {why_silent(silent[part.name])}; the datasets shown are incomplete"
                )
                remedy = SERVICE_REMEDY if part.pid is None else remedy_of(part, log)
                rows.append({"of": part.name, "problem": problem, "since": None, "remedy": remedy})
            continue
        try:
            last = (part.problem,) if part.problem else log_excerpt(log.read_text(errors="replace"), 1)
        except OSError:
            last = ()
        rows.append(
            {
                "of": part.name,
                "problem": "; ".join((f"is {part.state}", *last)),
                "since": part.since,
                "remedy": part.remedy or f"Its log is {log}",
            }
        )
    return rows


def dataset_problems(datasets: Iterable[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Return the problems of datasets: stalls, rejected messages, and credentials in the chain.

    With times and remedies.
    """
    rows: list[dict[str, object]] = []
    for dataset in datasets:
        if dataset["problem"]:
            rows.append(
                {
                    "of": dataset["alias"],
                    **{name: dataset.get(name) for name in ("problem", "since", "remedy")},
                }
            )
        if dataset.get("rejected"):
            reason = dataset.get("rejected_reason")
            count = "1 message was" if dataset["rejected"] == 1 else f"{dataset['rejected']} messages were"
            text = f"{count} rejected{f'; the first: {reason}' if reason else ''}"
            name = dataset["alias"]
            remedy = (
                f"`odf rejected list {name}` shows them; correct the source and `odf rejected retry {name} --all`, or "
                f"drop them, `odf rejected drop {name} --all`"
            )
            since = dataset.get("rejected_since")
            rows.append({"of": dataset["alias"], "problem": text, "since": since, "remedy": remedy})
        if dataset.get("exposed"):
            text = f"its chain shows credentials to all who may read it: {dataset['exposed']}"
            remedy = dataset["exposed_remedy"]
            rows.append({"of": dataset["alias"], "problem": text, "since": None, "remedy": remedy})
    return rows


def _print_problems(problems: Iterable[Mapping[str, object]]) -> None:
    """Print each problem in a few lines: the part or dataset, the time, the reason and the remedy."""
    for problem in problems:
        since = f", since {problem['since']}" if problem["since"] else ""
        heading(str(problem["of"]), "red", since)
        text = (
            str(problem["problem"]) if is_wide() else short(str(problem["problem"]), MAX_PROBLEM_CHARACTERS)
        )
        print_text(f"  {text}")
        if problem["remedy"]:
            print_text(f"  → {problem['remedy']}")
    echo("")


def _print_tables(
    node: Node, datasets: list[dict[str, Any]], problems: Sequence[Mapping[str, object]]
) -> None:
    print_object(node.addresses(), "table")
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
    if problems:
        _print_problems(problems)
    if datasets:
        shown: list[dict[str, object]] = [_table_row(dataset) for dataset in datasets]
        columns = COLUMNS + tuple(name for name in SELDOM if any(row[name] for row in shown))
        if not is_wide():
            shown = shorten_rows(shown, "problem")
        print_rows(shown, "table", columns=columns, extra=EXTRA)
    for dataset in datasets:
        if dataset["future"]:
            remark(f"{dataset['alias']}: {dataset['future']}")


def _print_each(datasets: list[dict[str, Any]], output: str) -> None:
    if output != "table":
        print_rows(datasets, output)
        return
    for dataset in datasets:
        print_object(dataset, "table")


def _find_dataset(datasets: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the dataset with this name or id; raises `DatasetUnknown`."""
    for dataset in datasets:
        if name.lower() == dataset["alias"].lower() or name == dataset["dataset_id"]:
            return dataset
    from odf_common.ports.store import unknown_dataset

    raise unknown_dataset(name, (dataset["alias"] for dataset in datasets))


def _table_row(row: dict[str, Any]) -> dict[str, object]:
    """Return a dataset as a row of the table."""
    stage = row.get("stage")
    if stage and row.get("total"):
        stage = f"{stage}, {row['rows']} of {row['total']} rows"
    return {
        "dataset": row["alias"],
        "records": row["records"],
        "watermark": row.get("watermark"),
        "records/s": row.get("records_per_second"),
        "waiting": row.get("lag"),
        "running": stage,
        "poll": _poll(row.get("poll")),
        "late": row["late"],
        "rejected": row.get("rejected"),
        "dropped": row["dropped"],
        "waits for": row.get("waits_for_input"),
        "problem": row["problem"],
    }


def _datasets(node: Node) -> list[dict[str, Any]]:
    """Return the rows of the live view; empty if it cannot be reached."""
    try:
        return clients.live_view(node, VIEWS_TIMEOUT_SECONDS)
    except Unavailable:
        return []


def _summaries(node: Node, on_silence: clients.OnSilence) -> list[DatasetSummary]:
    """Return the coordinator's summaries of all datasets; empty if it cannot be reached."""
    try:
        clients.require_health(node, "coordinator")
        with clients.coordinator(node, timeout=0) as coordinator:
            return list(coordinator.List(ListRequest(), timeout=LIST_TIMEOUT_SECONDS).datasets)
    except OdfError as error:
        on_silence("coordinator", error)
        return []


def with_standing(
    views: Iterable[dict[str, Any]], summaries: Iterable[DatasetSummary]
) -> list[dict[str, Any]]:
    """Return the rows of the live view with the coordinator's fields, such as problem and late; None if unknown."""
    unknown = {"late": None, "dropped": None, "problem": None, "since": None, "remedy": None}
    rows = {
        str(row["dataset_id"]): {**row, "records": record_count(row["last_offset"]), **unknown}
        for row in views
    }
    for summary in summaries:
        row = rows.setdefault(summary.dataset_id, {"dataset_id": summary.dataset_id, "alias": summary.alias})
        row.setdefault("records", summary.records if summary.head else None)
        row.update(rejected=summary.rejected, rejected_reason=summary.rejected_reason or None)
        since = Timestamp(summary.rejected_since).whole_ms() if summary.HasField("rejected_since") else None
        row.update(rejected_since=since)
        row.update(exposed=summary.exposed or None, exposed_remedy=summary.exposed_remedy or None)
        row.update(late=summary.late, dropped=summary.dropped, **problem_of(summary))
        row.update(
            waits_for=summary.waits_for or None,
            waits_for_input=summary.waits_for_input or None,
            waits_remedy=summary.waits_remedy or None,
        )
    return list(rows.values())


def with_poll(row: Mapping[str, Any], polls: Mapping[str, PollsReply.Poll]) -> dict[str, Any]:
    """Return a dataset's row with its poll schedule: the interval in seconds, the state, the last and the next poll."""
    scheduled = polls.get(str(row["dataset_id"]))
    if scheduled is None:
        return dict(row)
    poll = {
        "interval": scheduled.interval,
        "state": scheduled.state,
        "last": scheduled.last or None,
        "next": scheduled.next or None,
    }
    return {**row, "poll": poll}


def _poll(poll: Mapping[str, Any] | None) -> str | None:
    """Return a poll schedule as text for the table."""
    if poll is None:
        return None
    if poll["state"] == "polling":
        return "running"
    return f"next {poll['next']}" if poll["next"] else f"every {poll['interval']} s"
