"""`odf rejected`: list, retry or drop messages that could not be read as records of their source."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import (
    output_option,
    print_bytes,
    print_object,
    print_rows,
    remark,
    shorten_rows,
)
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import Count, Parsed
from odf_common.errors import InvalidInput, OdfError
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.ingest_pb2 import (
    DrainRequest,
    RejectedLocation,
    RejectedPart,
    RejectedRequest,
    SettleRejectedReply,
    SettleRejectedRequest,
)

DEFAULT_MESSAGES: Final = 20  # messages listed by default
READ_AGAIN_TIMEOUT_SECONDS: Final = 60.0  # until retried messages are read
SHOWN_VALUE_BYTES: Final = 4096  # of each value that the list asks for
FORM: Final = re.compile(
    r"(?:(?P<source>.+)/)?(?P<part>\d{1,9}|row)/(?P<number>\d{1,19})", re.ASCII | re.DOTALL
)


def location_in(text: str) -> RejectedLocation:
    """Return the location in `[SOURCE/]PARTITION/OFFSET` or `[SOURCE/]row/NUMBER`; raises `InvalidInput`."""
    match = FORM.fullmatch(text)
    if match is None:
        raise InvalidInput(
            text=f"expected PARTITION/OFFSET or row/NUMBER, such as 0/1234, or SOURCE/0/1234, got {text!r}"
        )
    part = match["part"] if match["part"] == "row" else int(match["part"])
    return RejectedLocation(source_name=match["source"] or "", location=f"{part}/{int(match['number'])}")


LOCATION: Final = Parsed("location", location_in)
ALL = click.option("--all", "every", is_flag=True, help="All messages that await a decision.")


@click.group("rejected", cls=CommandGroup)
def rejected_command() -> None:
    """Retry or drop messages that could not be read as records.

    Rejected rows of pushed files count too, and those of polled files with `odf source set NAME
    badRecords=dead-letter`. All are kept in the topic odf.dead-letters.v1 for 30 days, and counted by `odf list`,
    `odf status` and `odf pull` until they are retried or dropped. LOCATION is what `odf rejected list` prints: a
    partition and an offset, or row and a number; with the source or the topic first if the dataset reads several:
    0/1234, row/17, orders/0/1234.

    \b
    Example:
      odf rejected list flights
      odf rejected show flights 0/1234
      odf rejected retry flights --all
      odf rejected drop flights 0/1234
    """


@rejected_command.command("list")
@dataset_argument
@click.option(
    "-n",
    "--limit",
    type=Count(0),
    default=DEFAULT_MESSAGES,
    show_default=True,
    help="Maximum number of messages; 0: all.",
)
@output_option
def list_rejected(*, dataset: str, limit: int, output: str) -> None:
    """List rejected messages that await a decision, oldest first: location, time, reason, beginning of the value.

    \b
    Example:
      odf rejected list flights
    """
    request = RejectedRequest(ref=dataset, limit=limit, value_bytes=SHOWN_VALUE_BYTES)
    counts = RejectedPart.Counts()
    rows = []
    for part in _stream_rejected(request):
        if part.HasField("counts"):
            counts = part.counts
        else:
            rows.append(_row(part.message, has_header=output != "table"))
    has_sources = len({row["source"] for row in rows}) > 1
    has_topics = len({row["topic"] for row in rows}) > 1 and not has_sources
    more = (*(("source",) if has_sources else ()), *(("topic",) if has_topics else ()))
    columns = ("location", *more, "time", "reason", "value")
    if rows or output != "table":
        shown = (
            [row | {"value": _one_line(row)} for row in shorten_rows(rows, "value")]
            if output == "table"
            else rows
        )
        print_rows(shown, output, columns=columns, whole=("reason",))
    else:
        remark(f"no rejected message of {dataset} awaits a decision")
    if counts.found > len(rows):
        remark(f"{counts.found - len(rows)} more: --limit 0 shows all")
    if counts.open > counts.found:
        remark(
            f"{counts.open - counts.found} of {counts.open} rejected messages are no longer in the dead-letter topic, "
            f"which keeps 30 days; `odf rejected drop {dataset} --all` stops counting them"
        )


@rejected_command.command("show")
@dataset_argument
@click.argument("location", type=LOCATION)
@output_option
def show_rejected(*, dataset: str, location: RejectedLocation, output: str) -> None:
    """Print one rejected message: its facts, then its value as sent; --output json has the value as a string.

    A row of Parquet or Arrow data is printed as a JSON object.

    On a terminal, characters of the value that act on it, or that nobody sees, are escaped.

    \b
    Example:
      odf rejected show flights 0/1234
    """
    request = RejectedRequest(ref=dataset, locations=[location])
    for part in _stream_rejected(request):
        if not part.HasField("message"):
            continue
        row = _row(part.message)
        if output != "table":
            print_object(row, output)
            continue
        print_object({name: row[name] for name in row if name != "value"}, output)
        print_bytes(part.message.value)


@rejected_command.command("retry")
@dataset_argument
@click.argument("locations", nargs=-1, type=LOCATION)
@ALL
@output_option
def retry_rejected(
    *, dataset: str, locations: tuple[RejectedLocation, ...], every: bool, output: str
) -> None:
    """Let rejected messages be read again, after you have corrected the source.

    A message of a topic is published again, to its partition; if it still cannot be read, it is rejected again, as a
    new message. The command waits until the topic is read, and says how many were rejected again. Rows of files, and
    messages that were polled, are parsed with the source's current definition, and committed once; those that still do
    not fit stay open.

    \b
    Example:
      odf rejected retry flights --all
    """
    before = _open(dataset)
    answer = _settle(dataset, locations, SettleRejectedRequest.RETRY, every=every)
    why = _why_unread(dataset) if answer.settled else ""
    still_open = answer.open if why or not answer.settled else _open(dataset)
    again = None if why else max(still_open - (before - answer.settled), 0)
    row = {"dataset": dataset, "retried": answer.settled, "rejectedAgain": again, "open": still_open}
    print_object(row, output)
    if why:
        remark(
            f"the messages are not read yet: {why}; `odf rejected list {dataset}` shows which are rejected again"
        )
    elif again:
        remark(f"{again} of {answer.settled} were rejected again: `odf rejected list {dataset}` says why")
    if answer.cut:
        remark(
            f"{answer.cut} messages were not retried: they were too large for the dead-letter topic, which has only "
            "their beginning; send them again from their origin, or drop them"
        )
    if answer.unfit:
        remark(f"{answer.unfit} messages still do not fit the source, the first: {answer.unfit_reason}")


@rejected_command.command("drop")
@dataset_argument
@click.argument("locations", nargs=-1, type=LOCATION)
@ALL
@output_option
def drop_rejected(*, dataset: str, locations: tuple[RejectedLocation, ...], every: bool, output: str) -> None:
    """Drop rejected messages: they are no longer counted or listed.

    \b
    Example:
      odf rejected drop flights 0/1234 0/1240
      odf rejected drop flights --all
    """
    answer = _settle(dataset, locations, SettleRejectedRequest.DROP, every=every)
    print_object({"dataset": dataset, "dropped": answer.settled, "open": answer.open}, output)


def _stream_rejected(request: RejectedRequest) -> Iterator[RejectedPart]:
    with clients.ingest() as ingest:
        yield from ingest.Rejected(request, timeout=clients.STREAM_TIMEOUT_SECONDS)


def _settle(
    dataset: str, locations: Sequence[RejectedLocation], action: SettleRejectedRequest.Action, *, every: bool
) -> SettleRejectedReply:
    if bool(locations) == every:
        raise click.UsageError("give LOCATIONs, or --all")
    request = SettleRejectedRequest(ref=dataset, action=action, locations=locations)
    with clients.ingest() as ingest:
        answer: SettleRejectedReply = ingest.SettleRejected(request, timeout=clients.STREAM_TIMEOUT_SECONDS)
    return answer


def _why_unread(dataset: str) -> str:
    """Return the reason why the dataset's topics are not read to their ends yet, empty if they are."""
    try:
        with clients.ingest() as ingest:
            for _ in ingest.Drain(DrainRequest(ref=dataset), timeout=READ_AGAIN_TIMEOUT_SECONDS):
                pass
    except OdfError as error:  # a source is stopped, say
        return str(error)
    return ""


def _open(dataset: str) -> int:
    """Return the number of rejected messages that await a decision."""
    parts = _stream_rejected(RejectedRequest(ref=dataset, limit=1))
    return next((part.counts.open for part in parts if part.HasField("counts")), 0)


def _one_line(row: Mapping[str, object]) -> str:
    """Return the value of a message on one line; of a binary value, only its size."""
    text = str(row["value"])
    return f"(binary, {row['size']} bytes)" if "\0" in text or "\ufffd" in text else text


def _row(message: RejectedPart.Message, *, has_header: bool = True) -> dict[str, object]:
    value = message.value if has_header else message.value[message.header_bytes :]
    return {
        "location": message.location.location,
        "source": message.location.source_name,
        "topic": message.topic,
        "time": Timestamp.from_ms(message.time),
        "reason": message.reason,
        "size": message.size,
        "isCut": message.is_cut,
        "value": value.decode(errors="replace"),
    }
