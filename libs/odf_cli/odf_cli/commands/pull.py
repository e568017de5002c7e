"""`odf pull`: bring datasets up to date, copy them from a repository, or set a root's watermark."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import click

from odf_cli import clients
from odf_cli.embedded.node_file import Node
from odf_cli.name_lookup import complete_dataset, is_remote
from odf_cli.output import (
    output_option,
    prefix_dataset,
    print_rows,
    progress,
    remark,
    shorten_rows,
)
from odf_cli.user_input import TIME, absolute_url
from odf_cli.visibility import said_if_private
from odf_common.codec.times import time_message
from odf_common.errors import OdfError, Refused, with_advice
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.coordinator_pb2 import LastEventRequest, PullItem, PullRequest
from odf_common.proto.odf.node.v1.sync_pb2 import ListAliasesRequest, SyncPullRequest

REPORT_INTERVAL_SECONDS: Final = 5.0  # between two remarks
FINISHED = ("updated", "rebuilt", "restored", "up-to-date", "failed")
COPIED = {"updated": "copied from", "restored": "fetched again what was lost, from"}
COLUMNS = ("dataset", "state", "blocks", "records", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The arguments and options that select the datasets to pull."""

    datasets: tuple[str, ...]
    is_all: bool
    recursive: bool
    reset_derivatives: bool
    watermark: Timestamp | None
    alias: str | None
    """The local name for the copy, if a single dataset is copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command that apply to copies."""

    rechecks: bool
    is_forced: bool
    trusts_records: bool


class PullFailed(Refused):
    """A dataset could not be brought up to date."""


@click.command("pull")
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset)
@click.option("--all", "every", is_flag=True, help="Pull all datasets of the node.")
@click.option("-r", "--recursive", is_flag=True, help="Pull inputs first.")
@click.option(
    "--set-watermark",
    type=TIME,
    metavar="T",
    help="Declare that no older record will arrive (RFC 3339); roots only.",
)
@click.option(
    "--as",
    "alias",
    metavar="NAME",
    help="Local name of a copy (default: the last segment of its URL); NAME@REF copies to that reference.",
)
@click.option(
    "--reset-derivatives",
    is_flag=True,
    help="Roll back derivatives of reset inputs to the last consistent block, and recompute them.",
)
@click.option(
    "--recheck",
    "rechecks",
    is_flag=True,
    help="Copies: check that every file exists, and fetch missing ones again.",
)
@click.option(
    "--force",
    "is_forced",
    is_flag=True,
    help="Copies: replace the local chain if it has diverged or is ahead; its own blocks are no longer part of the "
    "dataset.",
)
@click.option(
    "--trust-records",
    "trusts_records",
    is_flag=True,
    help="Copies: check the files of new data, but not the records in them; faster.",
)
@output_option
def pull_command(
    *,
    datasets: tuple[str, ...],
    every: bool,
    recursive: bool,
    reset_derivatives: bool,
    set_watermark: Timestamp | None,
    alias: str | None,
    rechecks: bool,
    is_forced: bool,
    trusts_records: bool,
    output: str,
) -> None:
    """Bring datasets up to date: roots from their topics, derivatives from their inputs.

    Derived data removed by `odf system drop-data` is recomputed first, bit for bit. --reset-derivatives also covers
    everything derived from the given datasets, or the whole node if none are given. In a name, % matches anything.

    A URL (http, https, file, s3; odf+http and odf+https use the Smart Transfer Protocol), or REPO/DATASET of a
    repository added with `odf repo`, is copied and fully checked; files removed by `odf system drop-data` are fetched
    again, and with --recheck other missing files too. The name of a copy pulls from its source: see `odf alias`.
    Derived data that a source does not have is recomputed from the inputs, if the copy is pulled by its name.
    A copy whose chain has diverged from its source, or is ahead of it, is left as it is, unless --force replaces it.
    --trust-records is for sources of your own, such as another node of your team; `odf verify` checks the rest later.

    \b
    Example:
      odf pull --all
      odf pull 'flights.%'
      odf pull flights --set-watermark 2013-02-01T00:00:00Z
      odf pull --reset-derivatives flights
      odf pull https://example.org/flights
      odf pull shop/flights
      odf pull flights --recheck
      odf pull flights --force
      odf pull shop/flights --trust-records
      odf pull https://example.org/flights --as flights@theirs
      odf pull s3://my-bucket/shared/flights
    """
    selection = Selection(
        datasets=datasets,
        is_all=every,
        recursive=recursive,
        reset_derivatives=reset_derivatives,
        watermark=set_watermark,
        alias=alias,
    )
    options = Options(rechecks=rechecks, is_forced=is_forced, trusts_records=trusts_records)
    _require_options(selection, options)
    _print_pulled(_pull_selected(clients.this_node(), selection, options), output)


def _pull_selected(node: Node, selection: Selection, options: Options) -> list[dict[str, object]]:
    """Copy datasets from URLs, update existing copies, and then pull what this node computes.

    Returns a row per dataset.
    """
    sources = [name for name in selection.datasets if is_remote(name)]
    names = [name for name in selection.datasets if name not in sources]
    alias, is_all = selection.alias or "", selection.is_all
    clients.require_owners([alias.partition("@")[0]], node)
    rows = [_copy(node, source, alias, options) for source in sources]
    copies: dict[str, dict[str, object]] = {}
    if (names or is_all) and selection.watermark is None:
        copies = _refresh(node, [] if is_all else names, recursive=selection.recursive, options=options)
        rows += copies.values()
    names = [name for name in names if name.lower() not in copies]
    names += _to_rebuild([] if is_all else [*copies.values()])
    if names or is_all or selection.reset_derivatives:
        rows += _without_copies(_pull(node, _request(names, selection)), copies)
    for row in rows:
        _remark_missing(row)
    return rows


def _request(names: Sequence[str], selection: Selection) -> PullRequest:
    request = PullRequest(
        refs=names,
        all=selection.is_all,
        recursive=selection.recursive,
        reset_derivatives=selection.reset_derivatives,
    )
    if selection.watermark is not None:
        request.set_watermark.CopyFrom(time_message(selection.watermark))
    return request


def _require_options(selection: Selection, options: Options) -> None:
    """Raise `UsageError` unless the options can be combined."""
    if not selection.datasets and not selection.is_all and not selection.reset_derivatives:
        raise click.UsageError("give DATASETs, or --all")
    if options.is_forced and selection.is_all:
        raise click.UsageError("--force needs the names or URLs of the copies to replace")
    if selection.reset_derivatives and selection.watermark is not None:
        raise click.UsageError(
            "--set-watermark and --reset-derivatives cannot be combined; run one after the other"
        )
    if selection.alias is not None and len([name for name in selection.datasets if is_remote(name)]) != 1:
        raise click.UsageError("--as needs exactly one URL or REPO/DATASET")


def _print_pulled(rows: list[dict[str, object]], output: str) -> None:
    """Print a row per dataset; raises `PullFailed` if a dataset could not be pulled."""
    shown = shorten_rows(rows, "error") if output == "table" else rows
    print_rows(shown, output, columns=COLUMNS)
    failed = [
        prefix_dataset(str(row["dataset"]), str(row["error"])) for row in rows if row["state"] == "failed"
    ]
    for text in failed[:-1]:
        remark(f"error: {text}")
    if failed:
        raise PullFailed(text=failed[-1])


def _pull(node: Node, request: PullRequest) -> list[dict[str, object]]:
    rows = []
    live = Remarks(is_terminal=sys.stderr.isatty(), now=time.monotonic)
    with clients.coordinator(node) as coordinator, progress() as bars:
        tasks: dict[str, int] = {}
        begun: dict[str, int] = {}
        for item in coordinator.Pull(request, timeout=clients.STREAM_TIMEOUT_SECONDS):
            if item.alias not in tasks:
                tasks[item.alias] = bars.add_task(item.alias, total=None)
            task = tasks[item.alias]
            live.show(item)
            bars.update(
                task,  # type: ignore[arg-type]
                description=progress_text(item),
                completed=item.rows,
                total=item.total or None,
            )
            if item.state == "reset":
                remark(
                    f"rolled back {item.alias} to block {item.head}, the last one consistent with its inputs"
                )
            else:  # derivatives are rolled back before their inputs are pulled
                begun.setdefault(item.alias, len(begun))
            if item.state in FINISHED:
                bars.update(task, completed=1, total=1)  # type: ignore[arg-type]
                is_waiting = item.state == "up-to-date" and item.waits_for
                state = "waiting" if is_waiting else item.state
                row = _row(item.alias, state, item.new_blocks, item.new_records, item.head, item.error)
                row |= {"waitsFor": item.waits_for or None, "waitsRemedy": item.waits_remedy or None}
                rejects = {"rejected": item.rejected, "rejectedReason": item.rejected_reason or None}
                rows.append({**row, "late": item.late, **rejects})
    rows.sort(key=lambda row: begun[str(row["dataset"])])  # as they were pulled: inputs first
    future = clients.future_records(node)
    for row in rows:
        row["future"] = future.get(str(row["dataset"]))
        _remark_omitted(row)
    return rows


def _remark_omitted(row: Mapping[str, object]) -> None:
    """Print remarks on the records that a dataset has dropped or holds back, with the remedies."""
    if row["late"]:
        remark(
            f"{row['dataset']}: {row['late']} input records were too late for their windows and were dropped; "
            "`odf source show INPUT` proposes a watermarkDelay"
        )
    if row["future"]:
        remark(f"{row['dataset']}: {row['future']}")
    if row["waitsFor"] and not row["records"]:  # in most pulls the last window is open
        remark(f"{row['dataset']}: {row['waitsFor']}; {row['waitsRemedy']}")
    if row["rejected"]:
        remark(
            f"{row['dataset']}: rejected messages that await a decision: {row['rejected']}; the first: "
            f"{row['rejectedReason']}; see `odf rejected list {row['dataset']}`"
        )


def progress_text(item: PullItem) -> str:
    """Return the progress of a pull as text."""
    if not item.stage:
        return f"{item.alias}: {item.state}"
    rows = f", {item.rows} of {item.total} rows" if item.total else ""
    late = f", {item.late} late" if item.late else ""
    return f"{item.alias}: {item.stage}{rows}{late}"


class Remarks:
    """Prints the progress of a pull on stderr every `REPORT_INTERVAL_SECONDS`, if stderr is not a terminal."""

    def __init__(self, *, is_terminal: bool, now: Callable[[], float]) -> None:
        self._is_terminal = is_terminal
        self._now = now
        self._said = now()

    def show(self, item: PullItem) -> None:
        """Print the progress, unless it was printed within the last `REPORT_INTERVAL_SECONDS`."""
        if item.stage and not self._is_terminal and self._now() - self._said >= REPORT_INTERVAL_SECONDS:
            self._said = self._now()
            remark(progress_text(item))


def _refresh(
    node: Node, names: Sequence[str], *, recursive: bool, options: Options
) -> dict[str, dict[str, object]]:
    """Pull copies from their sources, and continue if one fails; returns the rows by lower-case name."""
    try:
        with clients.sync(node, timeout=0) as sync:
            request = ListAliasesRequest(refs=names, recursive=recursive)
            datasets = sync.ListAliases(request, timeout=clients.COMMAND_TIMEOUT_SECONDS).datasets
    except OdfError as error:
        remark(f"copies are not pulled: {error}")
        return {}
    rows = {}
    for dataset in datasets:
        if dataset.pull and not dataset.is_ours:
            try:
                rows[dataset.alias.lower()] = _copy(node, dataset.pull[0], dataset.alias, options)
            except OdfError as error:
                rows[dataset.alias.lower()] = _row(
                    dataset.alias, "failed", 0, 0, "", f"{dataset.pull[0]}: {with_advice(error)}"
                )
    return rows


def _to_rebuild(copies: Sequence[dict[str, object]]) -> list[str]:
    """Return the names of the copies with data that their source does not have, so that this node must compute it."""
    return [str(row["dataset"]) for row in copies if row.get("missingFiles")]


def _without_copies(
    pulled: Sequence[dict[str, object]], copies: Mapping[str, dict[str, object]]
) -> list[dict[str, object]]:
    """Return the rows of datasets that are not copies; the outcome of rebuilding a copy is added to the copy's row."""
    rows = []
    for row in pulled:
        copy = copies.get(str(row["dataset"]).lower())
        if copy is None:
            rows.append(row)
        elif copy.get("missingFiles") and row["state"] in ("rebuilt", "failed"):
            copy |= {"state": row["state"], "error": row["error"], "missingFiles": 0, "missingInputs": []}
    return rows


def _remark_missing(row: Mapping[str, object]) -> None:
    """Print a remark on how to get the data of a copy that its source does not have."""
    if not row.get("missingFiles"):
        return
    name, inputs = row["dataset"], cast("list[str]", row["missingInputs"])
    text = f"{name}: files that its source does not have: {row['missingFiles']}; `odf pull {name}` recomputes them"
    remark(text + (f", once its inputs are pulled: {', '.join(inputs)}" if inputs else " from its inputs"))


def _copy(node: Node, url: str, alias: str, options: Options) -> dict[str, object]:
    row: dict[str, object] = {}
    url = absolute_url(url)
    with said_if_private() as private, clients.sync(node) as sync, progress() as bars:
        task = bars.add_task(url, total=None)
        request = SyncPullRequest(
            url=url,
            alias=alias,
            rechecks=options.rechecks,
            is_forced=options.is_forced,
            trusts_records=options.trusts_records,
        )
        for item in sync.Pull(request, timeout=clients.STREAM_TIMEOUT_SECONDS):
            bars.update(
                task, description=f"{item.alias}: {item.state}", completed=item.done, total=item.total or None
            )
            if item.state in FINISHED:
                row = _row(item.alias, item.state, item.new_blocks, item.new_records, item.head, "")
                row |= {"missingFiles": item.missing_objects, "missingInputs": list(item.missing_inputs)}
                row |= {"exposed": None if item.state == "failed" else _plain_credentials(node, item.alias)}
            if item.state == "replacing":
                remark(f"warning: replacing the chain of {item.alias}, whose head is {item.replaced}")
            if item.is_private:
                private.add(item.alias)
    if row.get("exposed") and row["state"] in COPIED:
        remark(
            f"warning: the chain of {row['dataset']} shows credentials to all who may read it: {row['exposed']}; "
            "its owner should have them replaced at the source"
        )
    remark(f"{COPIED.get(str(row.get('state')), 'nothing new at')} {url}")
    if options.trusts_records and row.get("state") in COPIED:
        remark(f"records were not compared with their blocks; `odf verify {row['dataset']}` does that")
    return row


def _plain_credentials(node: Node, alias: str) -> str | None:
    """Return the plain-text credentials in the chain of a copy; None if there are none, or if that is unknown."""
    from odf_common.codec.flatbuffers import decode_event
    from odf_common.dataset.plain_credentials import credentials_in, places_of

    request = LastEventRequest(ref=alias, kind="SetPollingSource")
    try:
        with clients.coordinator(node, timeout=0) as coordinator:
            event = coordinator.LastEvent(request, timeout=clients.COMMAND_TIMEOUT_SECONDS).event
    except OdfError:
        return None  # `odf status` shows them too
    found = credentials_in(decode_event(event)) if event else ()
    return places_of(found) or None


def _row(dataset: str, state: str, blocks: int, records: int, head: str, error: str) -> dict[str, object]:
    return {
        "dataset": dataset, "state": state, "blocks": blocks, "records": records, "head": head, "error": error or None,
    }  # fmt: skip
