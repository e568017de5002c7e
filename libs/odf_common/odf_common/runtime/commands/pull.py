"""`odf pull`: bring datasets up to date, copy them from a repository, or set a root's watermark."""

import sys
import time
from collections.abc import Callable
from typing import Final

import click

from odf_common.codec.times import time_message
from odf_common.errors import Refused
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.coordinator_pb2 import PullItem, PullRequest
from odf_common.proto.odf.node.v1.sync_pb2 import SyncPullRequest
from odf_common.runtime import ask
from odf_common.runtime.node import Node
from odf_common.runtime.output import (
    is_wide,
    of_dataset,
    output_option,
    print_rows,
    progress,
    remark,
    shortened,
)
from odf_common.runtime.urls import absolute_url

EVERY: Final = 5.0  # seconds
FINISHED = ("updated", "rebuilt", "restored", "up-to-date", "failed")
COPIED = {"updated": "copied from", "restored": "brought again what was lost here, from"}
COLUMNS = ("dataset", "state", "blocks", "records", "error")


@click.command("pull")
@click.argument("datasets", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All datasets of the node.")
@click.option("-r", "--recursive", is_flag=True, help="Inputs first.")
@click.option(
    "--set-watermark", metavar="T", help="No record before this time will come any more (RFC 3339); roots."
)
@click.option(
    "--as",
    "alias",
    metavar="NAME",
    help="Local name of a dataset that is copied, else the last segment of its URL; NAME@REF stages it there.",
)
@click.option(
    "--reset-derivatives",
    is_flag=True,
    help="Take back what was derived of inputs that were reset, to where both agree, and derive it again.",
)
@output_option
def command(
    *,
    datasets: tuple[str, ...],
    every: bool,
    recursive: bool,
    reset_derivatives: bool,
    set_watermark: str | None,
    alias: str | None,
    output: str,
) -> None:
    """Bring datasets up to date: roots take what waits in their topics, derivatives what their inputs have.

    Data of derivatives that was dropped is made again, bit for bit, before.
    With --reset-derivatives these are the datasets given and all that is derived of them; without any, all of the node.
    A URL (http, https, file) is copied from there, everything checked; what was lost here is fetched again. In a name,
    % stands for anything.

    \b
    Example:
      odf pull --all
      odf pull 'flights.%'
      odf pull flights --set-watermark 2013-02-01T00:00:00Z
      odf pull --reset-derivatives flights
      odf pull https://example.org/flights
      odf pull https://example.org/flights --as flights@theirs
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if not datasets and not every and not reset_derivatives:
        raise click.UsageError("name datasets, or give --all")
    if reset_derivatives and set_watermark is not None:
        raise click.UsageError("--set-watermark and --reset-derivatives go one after the other")
    node = ask.this_node()
    urls = [name for name in datasets if "://" in name]
    names = [name for name in datasets if "://" not in name]
    if alias is not None and len(urls) != 1:
        raise click.UsageError("--as goes with one URL")
    rows = [_copy(node, url, alias or "") for url in urls]
    if names or every or reset_derivatives:
        request = PullRequest(refs=names, all=every, recursive=recursive, reset_derivatives=reset_derivatives)
        if set_watermark is not None:
            request.set_watermark.CopyFrom(time_message(Timestamp.parse(set_watermark)))
        rows += _pull(node, request)
    shown = shortened(rows, "error") if output == "table" and not is_wide() else rows
    print_rows(shown, output, columns=COLUMNS)
    failed = [of_dataset(str(row["dataset"]), str(row["error"])) for row in rows if row["state"] == "failed"]
    for text in failed[:-1]:
        remark(f"error: {text}")
    if failed:
        raise Refused(reason="PullFailed", text=failed[-1])


def _pull(node: Node, request: PullRequest) -> list[dict[str, object]]:
    rows = []
    live = Remarks(is_terminal=sys.stderr.isatty(), now=time.monotonic)
    with ask.coordinator(node) as coordinator, progress() as bars:
        tasks: dict[str, int] = {}
        for item in coordinator.Pull(request, timeout=ask.WORK):
            task = tasks.setdefault(item.alias, bars.add_task(item.alias, total=None))
            live.show(item)
            bars.update(
                task,  # type: ignore[arg-type]
                description=said(item),
                completed=item.rows,
                total=item.total or None,
            )
            if item.state == "reset":
                remark(f"took {item.alias} back to where it agrees with its inputs, block {item.head}")
            if item.state in FINISHED:
                bars.update(task, completed=1, total=1)  # type: ignore[arg-type]
                row = _row(item.alias, item.state, item.new_blocks, item.new_records, item.head, item.error)
                rejects = {"rejected": item.rejected, "rejectedReason": item.rejected_reason or None}
                rows.append({**row, "late": item.late, **rejects})
    for row in rows:
        if row["late"]:
            remark(
                f"{row['dataset']}: {row['late']} input records came too late for their windows, and were dropped"
            )
        if row["rejected"]:
            remark(
                f"{row['dataset']}: {row['rejected']} rejected messages wait for a decision, the first reason: "
                f"{row['rejectedReason']}; see `odf rejected list {row['dataset']}`"
            )
    return rows


def said(item: PullItem) -> str:
    """Return how far a pull is, in words."""
    if not item.stage:
        return f"{item.alias}: {item.state}"
    rows = f", {item.rows} of {item.total} rows" if item.total else ""
    late = f", {item.late} late" if item.late else ""
    return f"{item.alias}: {item.stage}{rows}{late}"


class Remarks:
    """Says now and then how far a pull is, where there is no terminal to show it on."""

    def __init__(self, *, is_terminal: bool, now: Callable[[], float]) -> None:
        """Begin with nothing to say for `EVERY` seconds."""
        self._is_terminal = is_terminal
        self._now = now
        self._said = now()

    def show(self, item: PullItem) -> None:
        """Say it, unless something was said a moment ago."""
        if item.stage and not self._is_terminal and self._now() - self._said >= EVERY:
            self._said = self._now()
            remark(said(item))


def _copy(node: Node, url: str, alias: str) -> dict[str, object]:
    row: dict[str, object] = {}
    url = absolute_url(url)
    with ask.sync(node) as sync, progress() as bars:
        task = bars.add_task(url, total=None)
        for item in sync.Pull(SyncPullRequest(url=url, alias=alias), timeout=ask.WORK):
            bars.update(
                task, description=f"{item.alias}: {item.state}", completed=item.done, total=item.total or None
            )
            if item.state in FINISHED:
                row = _row(item.alias, item.state, item.new_blocks, item.new_records, item.head, "")
    remark(f"{COPIED.get(str(row.get('state')), 'nothing new at')} {url}")
    return row


def _row(dataset: str, state: str, blocks: int, records: int, head: str, error: str) -> dict[str, object]:
    return {
        "dataset": dataset, "state": state, "blocks": blocks, "records": records, "head": head, "error": error or None,
    }  # fmt: skip
