"""`odf ingest DATASET [FILE…|-]`: append files; each is one batch, committed when the command returns."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import grpc

from odf_cli import clients
from odf_cli.embedded.node_file import Node
from odf_cli.exit_codes import ExitCode, keeping_interrupts
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_rows, progress, remark
from odf_cli.suggestions import future_remark, late_remark
from odf_cli.user_input import TIME, read_options, remark_on_typing, with_read_options
from odf_common.adapters.grpc.client import ServiceFailed
from odf_common.adapters.local.process_files import Staging
from odf_common.adapters.local.secrets import keep_private
from odf_common.codec.times import time_message_or_none
from odf_common.dataset.batch_keys import key_in_run
from odf_common.errors import InvalidInput, OdfError, Refused, Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.ingest_pb2 import CancelPushRequest, PushHeader, PushPart, PushReply
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub

if TYPE_CHECKING:
    from rich.progress import TaskID

MIB: Final = 1024 * 1024
LARGE_FILE_BYTES: Final = 16 * MIB  # progress is shown from this size on
CANCEL_SECONDS: Final = 0.5  # between cancel requests
CANCELLED: Final = "Cancelled"  # the reason the node reports
Show = Callable[[str, int], None]  # the stage, and the bytes of it that are done
COLUMNS: Final = ("file", "outcome", "records", "rejected", "head")


@click.command("ingest")
@dataset_argument
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--source", default="", help="Push source; required if the dataset has several.")
@click.option("--event-time", type=TIME, metavar="T", help="Event time of records without one (RFC 3339).")
@click.option(
    "--input-format",
    metavar="FORMAT",
    default="",
    help="Format of the files, if it is not that of the source: arrow, csv, json, ndjson, parquet, …",
)
@read_options
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Repeating a command with the same key and files commits only what is missing. The last 64 keys are kept.",
)
@output_option
def ingest_command(
    *,
    dataset: str,
    files: tuple[str, ...],
    source: str,
    event_time: Timestamp | None,
    input_format: str,
    options: Sequence[tuple[str, str]],
    idempotency_key: str | None,
    output: str,
) -> None:
    """Append files to a dataset; each FILE is one batch, - is standard input.

    Rows that are not records of the source are rejected (see `odf rejected`), unless it has badRecords=stop, is a
    snapshot, or none of the file's rows fits: then the file is refused. Stops at the first refused file, and prints
    the outcome of each. Ctrl-C cancels the file being committed and waits for the node's answer. A second Ctrl-C exits
    at once and prints a key: repeat the command with it to find out what was committed.

    \b
    Example:
      odf ingest flights flights.ndjson
      odf ingest flights flights.csv --input-format csv --read-option 'separator=;'
      zcat flights.ndjson.gz | odf ingest flights -
    """
    timestamp = time_message_or_none(event_time)
    node = clients.this_node()
    if "-" in (files or ("-",)):
        remark_on_typing("records")
    run = idempotency_key or os.urandom(16).hex()
    results: list[_Result] = []
    for number, file in enumerate(files or ("-",)):
        header = PushHeader(
            ref=dataset,
            source_name=source,
            event_time=timestamp,
            idempotency_key=key_in_run(run, number),
            is_key_generated=idempotency_key is None,
            input_format=with_read_options(input_format, options),
            label=_file_label(file),
        )
        results.append(_outcome(node, header, file, run))
        if results[-1].ends_the_command:
            break
    rest = [_Result(file=file, outcome="not attempted") for file in (files or ("-",))[len(results) :]]
    rows = [result.row() for result in (*results, *rest)]
    # The reason of a failure follows the table.
    columns = [name for name in COLUMNS if name != "rejected" or any(row[name] for row in rows)]
    print_rows(rows, output, columns=columns, extra=("head",))
    for result in results:
        _remark_on(result, dataset, source)
    if any(result.reply is not None and result.reply.rejected for result in results):
        remark(
            f"hint: see `odf rejected list {dataset}`; `odf source set {dataset} badRecords=stop` refuses such files"
        )
    last = results[-1]
    if last.is_interrupted:
        raise click.exceptions.Exit(ExitCode.ABORTED)
    if last.error is not None:
        raise FileFailed(text=f"{_file_label(last.file)}: {last.error}", error=last.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The outcome for a file: committed, already (committed before), refused, cancelled, unknown, or not attempted."""

    file: str
    outcome: str
    reply: PushReply | None = None
    error: OdfError | None = None
    is_interrupted: bool = False

    @property
    def ends_the_command(self) -> bool:
        return self.is_interrupted or self.error is not None

    def row(self) -> Mapping[str, object]:
        reply = self.reply
        return {
            "file": self.file,
            "outcome": self.outcome,
            "records": None if reply is None else reply.records,
            "rejected": None if reply is None else reply.rejected,
            "already": None if reply is None else reply.already,
            "head": None if reply is None else reply.head,
            "error": None if self.error is None else str(self.error),
        }


class FileFailed(Refused):
    """A file was not committed; `text` names the file and the reason."""

    error: OdfError

    def advice(self) -> str:
        """Return the remedy."""
        return self.error.advice()


class VerdictUnknown(Unavailable):
    """The node did not report whether the file was committed."""

    MESSAGE = "{why}; the file may have been committed, or may still be"
    ADVICE = (
        "repeat the command with --idempotency-key {key}: files already committed are not committed again"
    )

    what: str = "the node"
    key: str


def _remark_on(result: _Result, dataset: str, source: str) -> None:
    """Print the remarks on a committed file: late and rejected records."""
    reply = result.reply
    if reply is None:
        return
    if reply.HasField("future"):
        remark(f"{_file_label(result.file)}: {future_remark(reply.future, dataset, source)}")
    if reply.HasField("late"):
        remark(f"{_file_label(result.file)}: {late_remark(reply.late, dataset, source)}")
    if reply.rejected:
        rows = "1 row is not a record" if reply.rejected == 1 else f"{reply.rejected} rows are not records"
        remark(f"{_file_label(result.file)}: {rows} of {dataset}; the first: {reply.rejected_reason}")


def _outcome(node: Node, header: PushHeader, file: str, run: str) -> _Result:
    """Push a file and return its outcome; an interrupted one ends the command."""
    push = _Push()
    try:
        reply = push.through(node, header, file)
    except KeyboardInterrupt:
        if not push.is_sent:
            return _Result(file=file, outcome="cancelled", is_interrupted=True)
        unknown = VerdictUnknown(why="exited before the node answered", key=run)
        remark(f"{_file_label(file)}: {unknown}")
        remark(f"hint: {unknown.advice()}")
        return _Result(file=file, outcome="unknown", error=unknown, is_interrupted=True)
    except Refused as error:
        if push.is_interrupted and error.reason == CANCELLED:
            remark(f"{_file_label(file)}: {error}")
            return _Result(file=file, outcome="cancelled", is_interrupted=True)
        return _Result(file=file, outcome="refused", error=error)
    except OdfError as error:
        if push.is_sent and isinstance(error, Unavailable | ServiceFailed):
            lost = VerdictUnknown(why=str(error), key=run)
            return _Result(file=file, outcome="unknown", error=lost, is_interrupted=push.is_interrupted)
        return _Result(file=file, outcome="refused", error=error)
    if push.is_interrupted:
        remark(f"{_file_label(file)}: too late to cancel: already committed")
    outcome = "already" if reply.already else "committed"
    return _Result(file=file, outcome=outcome, reply=reply, is_interrupted=push.is_interrupted)


class _Push:
    """A push in progress: whether the node has received it, and whether the user has pressed Ctrl-C."""

    def __init__(self) -> None:
        self.is_sent = False
        self.is_interrupted = False

    def through(self, node: Node, header: PushHeader, file: str) -> PushReply:
        """Return the node's reply; raises `KeyboardInterrupt` if the user stops waiting for it."""
        with (
            _show_progress(file) as show,
            _stage_file(node, file, show) as name,
            clients.ingest(node) as ingest,
        ):
            header.staged = name
            show("committing", 0)
            call = None
            try:
                with _delay_interrupts():
                    call = ingest.Push.future(
                        iter((PushPart(header=header),)), timeout=clients.STREAM_TIMEOUT_SECONDS
                    )
                    self.is_sent = True
                return _answer(call)
            except KeyboardInterrupt:
                if call is None:
                    raise
                self.is_interrupted = True
                show("cancelling", 0)
                remark("cancelling; press Ctrl-C again to exit without waiting for the node")
            try:
                return _withdrawn(ingest, call, header.idempotency_key)
            except KeyboardInterrupt:
                call.cancel()
                raise


@contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the `with` block."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


@keeping_interrupts()
def _answer(call: grpc.Future, seconds: float | None = None) -> PushReply:  # type: ignore[type-arg]
    reply: PushReply = call.result(seconds)
    return reply


@keeping_interrupts()
def _withdrawn(ingest: IngestStub, call: grpc.Future, key: str) -> PushReply:  # type: ignore[type-arg]
    """Ask the node to cancel a push, again while it has not begun, and return the node's reply."""
    while True:
        ingest.CancelPush(CancelPushRequest(idempotency_key=key), timeout=clients.COMMAND_TIMEOUT_SECONDS)
        try:
            return _answer(call, CANCEL_SECONDS)
        except grpc.FutureTimeoutError:
            continue


@contextmanager
def _show_progress(file: str) -> Iterator[Show]:
    """Show the progress of a large file on a terminal; of standard input, once it turns out to be large."""
    is_piped = file == "-" and not sys.stdin.isatty()
    size = 0 if file == "-" else Path(file).stat().st_size
    if size < LARGE_FILE_BYTES and not is_piped:
        yield lambda _stage, _done: None
        return
    with progress() as bars:
        tasks: dict[str, TaskID] = {}

        def update(stage: str, done: int) -> None:
            if stage not in tasks:
                if size < LARGE_FILE_BYTES and done < LARGE_FILE_BYTES and not tasks:
                    return
                # A task keeps its total, so a stage without one, such as committing, needs its own task.
                for other in list(tasks):
                    bars.remove_task(tasks.pop(other))
                total = size // MIB if stage == "copying" and size else None
                tasks[stage] = bars.add_task(f"{_file_label(file)}: {stage}", total=total)
            bars.update(tasks[stage], completed=done // MIB)

        yield update


@contextmanager
def _stage_file(node: Node, file: str, show: Show) -> Iterator[str]:
    """Copy a file to the node's staging folder, so that it cannot change while the node reads it."""
    keep_private(node.home)
    with Staging(node.home).holding() as staged:
        for done in staged.write(_chunks(file)):
            show("copying", done)
        yield staged.name


def _chunks(file: str) -> Iterator[bytes]:
    """Iterate over a file's bytes; raises `InvalidInput` if it cannot be read."""
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as source:
            chunk = source.read(MIB)
            while chunk:
                yield chunk
                # A terminal whose end was typed would have to be ended again.
                chunk = source.read(MIB) if len(chunk) == MIB else b""
    except OSError as error:
        raise InvalidInput(text=f"cannot be read: {error.strerror}") from error


def _file_label(file: str) -> str:
    return "standard input" if file == "-" else file
