"""`odf source`: a dataset's sources: their state, resuming a stopped one, and their settings."""

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_object, print_rows, remark
from odf_cli.suggestions import CommandGroup, future_remark, late_remark
from odf_cli.user_input import STDIN, Parsed, enter_secret
from odf_common.adapters.local.outage_files import read_outages
from odf_common.chain.state import DEFAULT_SOURCE
from odf_common.dataset.resume_position import checked_position
from odf_common.errors import OdfError
from odf_common.proto.odf.node.v1.coordinator_pb2 import DescribeRequest
from odf_common.proto.odf.node.v1.ingest_pb2 import (
    ResumeSourceRequest,
    SetSourceRequest,
    SourceRequest,
    SourcesReply,
)
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub
from odf_common.service.settings import load

COLUMNS: Final = ("source", "state", "since", "waiting", "why", "next", "topic", "settings")
REOPEN_TIMEOUT_SECONDS: Final = 5.0  # seconds to wait until a resumed source is being read
STATE_POLL_SECONDS: Final = 0.1  # between polls
KAFKA_ADVICE: Final = "`odf status` shows Kafka's state; reading continues automatically when it answers"
HIDDEN_SETTING: Final = "schemaRegistryPassword"
ASK: Final = "-"
PASSING_STATES: Final = frozenset({"opening", "retrying"})
SOURCE = click.option(
    "--source", metavar="NAME", default="", help="Push source; optional if the dataset has only one."
)


@click.group("source", cls=CommandGroup)
def source_command() -> None:
    """Show sources, resume a stopped one, skip a message, change settings such as the interval of polls.

    \b
    Example:
      odf source show orders
      odf source resume orders --from earliest
      odf source skip orders
      odf source set orders badRecords=stop
      odf source set cities pollInterval=1h badRecords=dead-letter
    """


@source_command.command("show")
@dataset_argument
@SOURCE
@output_option
def show(*, dataset: str, source: str, output: str) -> None:
    """Show a dataset's sources: state, position, settings, and why one is stopped and what to do.

    A problem of the dataset, such as a preprocess query that would be refused today, is shown for each source without
    one of its own. A polling source is idle, polling or failed; `since` is the end of its last poll. `next` is where
    reading continues: PARTITION:OFFSET for each partition of the topic, or the time of the next poll.

    \b
    Example:
      odf source show orders
      odf source show orders --output json
    """
    with clients.ingest(must_answer=True) as ingest:
        reply = ingest.ShowSources(
            SourceRequest(ref=dataset, source_name=source), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
    _print(_with_problem(_with_outage(reply), dataset), dataset, output)


def _with_outage(reply: SourcesReply) -> SourcesReply:
    """Return the sources; if a source waits for Kafka since an unknown time, `since` is the start of Kafka's outage."""
    times = [one.since for one in read_outages(load().home) if one.part == "kafka"]
    for one in reply.sources:
        if times and one.state == "retrying" and not one.since:
            one.since, one.advice = min(times), one.advice or KAFKA_ADVICE
    return reply


def _with_problem(reply: SourcesReply, dataset: str) -> SourcesReply:
    """Return the sources; those without a problem get the problem of their dataset, if the coordinator answers."""
    with suppress(OdfError), clients.coordinator(timeout=0) as coordinator:
        summary = coordinator.Describe(DescribeRequest(ref=dataset), timeout=clients.HEALTH_TIMEOUT_SECONDS)
        for one in reply.sources:
            if summary.problem and not one.why:
                one.why, one.advice = summary.problem, summary.remedy
    return reply


@source_command.command("resume")
@dataset_argument
@SOURCE
@click.option(
    "--from",
    "start",
    type=Parsed("position", checked_position),
    metavar="earliest|latest|OFFSET|PARTITION:OFFSET,...|keep",
    help="Accept the topic as it is now and continue at this position; keep: at the same offsets as before.",
)
@click.option("--topic", metavar="NAME", default="", help="Only this topic, if the source reads several.")
@output_option
def resume(*, dataset: str, source: str, start: str | None, topic: str, output: str) -> None:
    """Resume a stopped source after fixing the cause.

    If the topic was replaced, deleted or lost messages, --from sets where to continue; only this choice is recorded in
    the chain. The source's own topic is created if it is missing; an external one is no longer read.

    \b
    Example:
      odf source resume orders
      odf source resume orders --source till --from earliest
      odf source resume orders --from 1200
      odf source resume orders --from 0:1200,1:950
    """
    request = ResumeSourceRequest(ref=dataset, source_name=source, start=start or "", topic=topic)
    with clients.ingest() as ingest:
        reply = ingest.ResumeSource(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
        if reply.head:
            remark(f"recorded in block {reply.head}: next offsets {_offsets(reply.next.items())}")
        _print(_await_reopened(ingest, dataset, reply.source_name), dataset, output)


@source_command.command("skip")
@dataset_argument
@SOURCE
@output_option
def skip(*, dataset: str, source: str, output: str) -> None:
    """Skip the message at which a source is stopped: it becomes a dead letter, and the source continues.

    If a whole batch cannot be committed, the message is found by trying smaller and smaller parts. The -C and the +C of
    a correction are two messages: skip one, then the other, at which the source stops next. Of a polling source,
    skip the next file that is refused: it is recorded as read, without its records, until it changes.

    \b
    Example:
      odf source skip orders
    """
    with clients.ingest() as ingest:
        reply = ingest.SkipMessage(
            SourceRequest(ref=dataset, source_name=source), timeout=clients.STREAM_TIMEOUT_SECONDS
        )
    position = {"topic": reply.topic, "partition": reply.partition, "offset": reply.offset}
    where = position if reply.skipped and not reply.file else dict.fromkeys(position)
    if reply.file:
        where = {"file": reply.file}
    print_object({"source": reply.source_name, "skipped": reply.skipped, **where}, output)
    if reply.file:
        remark(f"recorded as read, without its records; `odf pull {dataset}` reads the files after it")
    elif not reply.skipped:
        remark("nothing failed this time; the source continues")


def _complete_setting(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the settings of the dataset's sources whose keys begin with `incomplete`, with their values."""
    request = SourceRequest(ref=context.params.get("dataset") or "")
    try:
        with clients.ingest(timeout=0) as ingest:
            sources = ingest.ShowSources(request, timeout=clients.OPTIONAL_CALL_TIMEOUT_SECONDS).sources
    except OdfError:
        return []
    settings = {f"{key}={value}" for source in sources for key, value in source.settings.items()}
    return sorted(text for text in settings if text.lower().startswith(incomplete.lower()))


@source_command.command("set")
@dataset_argument
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...", shell_complete=_complete_setting)
@SOURCE
@output_option
def set_(*, dataset: str, settings: tuple[str, ...], source: str, output: str) -> None:
    """Change settings of a source. They apply to this node and are not in the chain.

    Messages that are published after the command has returned are read with them, unless the source has been busy with
    a batch for 5 s since: then those after that batch.

    badRecords (auto, dead-letter, stop), maxRejectedShare (0 to 1), finerTimes (cut, refuse), retractions of a
    ChangelogStream (strict, complete), emptySnapshot (auto, retract, refuse), maxRetractedShare (0 to 1),
    retractionGuardRows; watermarkDelay, maxFuture, idleTimeout, and pollInterval of a polling source, are durations
    such as 90s, 2h or 1d. partitions (which can only be increased) and retention apply to the source's own topic.

    topics lists external topics to read instead of the source's own: names separated by commas, * matches any
    characters; topicStart (earliest, latest or a time) is where reading starts. keyColumns with keyFormat (text, json,
    registry), headerColumns and timestampColumn name columns that are read from the key, the headers and the timestamp
    of a message.

    schemaRegistry is the address of the schema registry of the topic's messages, with schemaRegistryUser,
    schemaRegistryPassword and schemaRegistryCa (a file). With the password `-`, it is prompted for or read from stdin.
    messageFormat is the format of messages if it is not the source's (source, arrow). envelope says what wraps their
    records (none, debezium).

    \b
    Example:
      odf source set orders badRecords=stop
      odf source set orders watermarkDelay=2h
      odf source set orders partitions=4 retention=30d
      odf source set orders maxRetractedShare=1 --source till
      odf source set cities pollInterval=1h
      odf source set orders topics=shop.orders,shop.returns.* topicStart=2026-03-04T00:00:00Z
      odf source set orders schemaRegistry=https://registry:8081 schemaRegistryUser=odf schemaRegistryPassword=-
      odf source set orders keyColumns=id headerColumns=trace-id:trace timestampColumn=event_time
    """
    pairs = [setting.partition("=") for setting in settings]
    if not all(key and mark for key, mark, _ in pairs):
        raise click.UsageError("settings have the form KEY=VALUE")
    changes = {key: _ask(key) if (key, value) == (HIDDEN_SETTING, ASK) else value for key, _, value in pairs}
    request = SetSourceRequest(ref=dataset, source_name=source, changes=changes)
    with clients.ingest() as ingest:
        reply = ingest.SetSource(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    _print(reply, dataset, output)


def _ask(key: str) -> str:
    """Return a value that should not be in the shell's history: typed at a prompt, or read from standard input."""
    return enter_secret(None if sys.stdin.isatty() else STDIN, key)


def _await_reopened(ingest: IngestStub, dataset: str, source: str) -> SourcesReply:
    """Return the state of a source once it is reading again, or its latest state after `REOPEN_TIMEOUT_SECONDS`."""
    deadline = time.monotonic() + REOPEN_TIMEOUT_SECONDS
    while True:
        reply: SourcesReply = ingest.ShowSources(
            SourceRequest(ref=dataset, source_name=source), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
        if time.monotonic() > deadline or all(source.state not in PASSING_STATES for source in reply.sources):
            return reply
        time.sleep(STATE_POLL_SECONDS)


def _print(reply: SourcesReply, dataset: str, output: str) -> None:
    is_table = output == "table"
    print_rows([_row(source, is_table=is_table) for source in reply.sources], output, columns=COLUMNS)
    if is_table:
        for source in reply.sources:
            if source.advice:
                remark(f"{source.name}: {source.advice}")
            is_only = len(reply.sources) == 1 and source.name == DEFAULT_SOURCE
            name = "" if is_only else source.name
            if source.HasField("future"):
                remark(f"{source.name}: {future_remark(source.future, dataset, name)}")
            if source.HasField("late"):
                remark(f"{source.name}: {late_remark(source.late, dataset, name)}")


def _row(source: SourcesReply.Source, *, is_table: bool) -> dict[str, object]:
    waiting = source.waiting if source.HasField("waiting") else None
    row = {"source": source.name, "state": source.state, "since": source.since or None, "waiting": waiting}
    row |= {"why": source.why or None, "topic": source.topic}
    if is_table:
        # The others are the defaults; JSON has all of them.
        settings = " ".join(f"{key}={source.settings[key]}" for key in sorted(source.changed))
        position = _offsets(source.next.items()) if source.topic else source.next_poll
        return {**row, "next": position, "settings": settings}
    next_ = {str(number): offset for number, offset in sorted(source.next.items())}
    return {
        **row,
        "advice": source.advice or None,
        "late": source.late.records,
        "lateBy": source.late.most or None,
        "proposedDelay": source.late.proposed_delay or None,
        "future": source.future.records,
        "futureOffset": source.future.offset if source.future.records else None,
        "futureTime": source.future.time or None,
        "next": next_,
        "nextPoll": source.next_poll or None,
        "settings": dict(sorted(source.settings.items())),
    }


def _offsets(positions: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{number}:{offset}" for number, offset in sorted(positions)) or "beginning"
