"""Chains of metadata: `odf log`, `ref`, `reset`, `compare` and `commit`."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

import click

from odf_cli import clients
from odf_cli.exit_codes import ExitCode
from odf_cli.name_lookup import dataset_argument, find_block, is_remote, require_block_name
from odf_cli.output import confirm, echo, output_option, print_object, print_rows, remark
from odf_cli.rows import comparison_row, summary_row
from odf_cli.suggestions import CommandGroup, NameChoice
from odf_cli.user_input import Count, absolute_url, read_limited, shown_name
from odf_cli.visibility import say_if_private
from odf_common.codec.flatbuffers import decode_block, encode_event
from odf_common.codec.manifests import block_to_yaml, event_from_text, to_plain
from odf_common.codec.model_schema import EVENTS
from odf_common.dataset.signature_check import check_signature
from odf_common.errors import InvalidInput, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent, SetTransform, UnknownEvent
from odf_common.proto.odf.node.v1.coordinator_pb2 import (
    BlockItem,
    CommitEventRequest,
    CompareRequest,
    Comparison,
    DeleteRefRequest,
    FastForwardRequest,
    ListRefsRequest,
    LogRequest,
    RefItem,
    ResetRequest,
    SetRefRequest,
)
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub
from odf_common.proto.odf.node.v1.sync_pb2 import SyncCompareRequest

SIGNED = ("signature", "signer")
EVENT_KINDS = (*(kind.__name__ for kind in EVENTS.members), UnknownEvent.__name__)
COLUMNS = ("block", "systemTime", "event", "offsets", "watermark", "hash")
EXTRA = ("watermark", "systemTime")  # left out first on a narrow terminal


@click.command("log")
@dataset_argument
@click.option("--limit", type=Count(1), help="Maximum number of blocks.")
@click.option(
    "--filter",
    "kinds",
    multiple=True,
    type=NameChoice("a kind of event", EVENT_KINDS),
    metavar="EVENT",
    help="Show only events of this kind (case-insensitive); may be repeated.",
)
@click.option(
    "--signatures", is_flag=True, help="Show who signed each block, and whether the signature is valid."
)
@output_option
def log_command(
    *, dataset: str, limit: int | None, kinds: tuple[str, ...], signatures: bool, output: str
) -> None:
    """Show a dataset's metadata chain, newest block first.

    With --signatures each block shows its signer, and whether the signature is valid, invalid or none. Valid means
    that this key signed the block; whether to trust the key is up to you.

    \b
    Example:
      odf log flights --limit 5
      odf log flights --signatures
      odf log flights --filter AddData --output yaml
    """
    # The server does not filter, so with a filter the limit is applied here.
    request = LogRequest(ref=dataset, limit=0 if kinds else limit or 0, with_signatures=signatures)
    with clients.coordinator() as coordinator:
        blocks = islice(
            _of_kinds(coordinator.Log(request, timeout=clients.STREAM_TIMEOUT_SECONDS), kinds), limit
        )
        if output == "yaml":
            for item in blocks:
                remark = _signature_comment(item) if signatures else ""
                echo(f"---\n# Block: {item.hash}\n{remark}{block_to_yaml(item.content)}", is_line=False)
            return
        rows = [
            (_table_row(item) if output == "table" else _plain_row(item))
            | (_signature(item) if signatures else {})
            for item in blocks
        ]
    print_rows(rows, output, columns=COLUMNS + SIGNED if signatures else COLUMNS, extra=EXTRA)


def _of_kinds(items: Iterable[BlockItem], kinds: tuple[str, ...]) -> Iterator[BlockItem]:
    for item in items:
        if not kinds or type(decode_block(item.content).block.event).__name__ in kinds:
            yield item


def _signature(item: BlockItem) -> dict[str, object]:
    signature = check_signature(
        Multihash.parse(item.hash), item.signature if item.HasField("signature") else None
    )
    return {"signature": signature.status, "signer": signature.signer}


def _signature_comment(item: BlockItem) -> str:
    return "".join(f"# {name.capitalize()}: {value}\n" for name, value in _signature(item).items() if value)


def _plain_row(item: BlockItem) -> dict[str, object]:
    return {"hash": item.hash, **to_plain(decode_block(item.content).block)}


def _table_row(item: BlockItem) -> dict[str, object]:
    block = decode_block(item.content).block
    event = block.event
    row: dict[str, object] = {
        "block": block.sequence_number,
        "systemTime": block.system_time,
        "event": type(event).__name__,
        "hash": item.hash,
    }
    if isinstance(event, DataEvent):
        if event.new_data is not None:
            interval = event.new_data.offset_interval
            row["offsets"] = f"{interval.start}–{interval.end}"
        row["watermark"] = event.new_watermark
    return row


EXPECTED = click.option(
    "--expected",
    metavar="BLOCK",
    help="Only if the reference is at this block; 'none': only if it does not exist. Default: unconditionally.",
)


@click.group("ref", cls=CommandGroup)
def ref_command() -> None:
    """Manage references other than the head: stage blocks, inspect and verify them, then move the head.

    DATASET@NAME is the dataset at that reference: log, inspect, tail, verify, compare, commit and reset accept it,
    and `odf pull URL --as DATASET@NAME` copies a chain to it.

    \b
    Example:
      odf ref set flights@candidate
      echo '{kind: SetInfo, description: Departures}' | odf commit flights@candidate -
      odf verify flights@candidate
      odf ref fast-forward flights@candidate
    """


@ref_command.command("list")
@dataset_argument
@output_option
def list_refs(*, dataset: str, output: str) -> None:
    """List a dataset's references and how each relates to the head, or why one cannot be read.

    \b
    Example:
      odf ref list flights
    """
    with clients.coordinator() as coordinator:
        answer = coordinator.ListRefs(ListRefsRequest(ref=dataset), timeout=clients.STREAM_TIMEOUT_SECONDS)
    print_rows([_ref_row(ref) for ref in answer.refs], output)


@ref_command.command("set")
@click.argument("reference")
@click.argument("block", required=False)
@EXPECTED
@output_option
def set_ref(*, reference: str, block: str | None, expected: str | None, output: str) -> None:
    """Create or move REFERENCE to BLOCK, a hash or another reference's name. Default: the head.

    \b
    Example:
      odf ref set flights@candidate
      odf ref set flights@before f1620… --expected none
    """
    request = SetRefRequest(ref=reference, block=block or "", expected=_expected_block(expected))
    with clients.coordinator() as coordinator:
        item = coordinator.SetRef(request, timeout=clients.STREAM_TIMEOUT_SECONDS)
    print_object(_ref_row(item), output)


@ref_command.command("delete")
@click.argument("reference")
@EXPECTED
def delete_ref(*, reference: str, expected: str | None) -> None:
    """Delete REFERENCE, even if it is damaged. Its blocks are kept.

    \b
    Example:
      odf ref delete flights@candidate
    """
    with clients.coordinator() as coordinator:
        coordinator.DeleteRef(
            DeleteRefRequest(ref=reference, expected=_expected_block(expected)),
            timeout=clients.COMMAND_TIMEOUT_SECONDS,
        )


@ref_command.command("fast-forward")
@click.argument("reference")
@output_option
def fast_forward(*, reference: str, output: str) -> None:
    """Move the head of a dataset to REFERENCE; refused unless REFERENCE continues the head.

    If this node has the dataset's key, its owner takes over what the blocks bring, and the command lists what changes:
    the transform, sources, columns, how far sources and inputs have been read, and the watermark.

    \b
    Example:
      odf ref fast-forward flights@candidate
    """
    with clients.coordinator() as coordinator:
        summary = coordinator.FastForward(
            FastForwardRequest(ref=reference), timeout=clients.STREAM_TIMEOUT_SECONDS
        )
    say_if_private([summary.alias])
    for change in summary.changes:
        remark(f"changed in {summary.alias}: {change}")
    print_object(summary_row(summary), output)


def _expected_block(block: str | None) -> str | None:
    return "" if block == "none" else block


def _ref_row(item: RefItem) -> dict[str, object]:
    compared: dict[str, object] = dict.fromkeys(("relation", "ahead", "behind", "common"))
    if item.HasField("compared"):
        compared = comparison_row(item.compared, "ahead", "behind")
    return {
        "name": item.name,
        "block": item.block or None,
        "sequence_number": item.sequence_number if item.HasField("sequence_number") else None,
        **compared,
        "problem": item.problem or None,
    }


@click.command("reset")
@dataset_argument
@click.argument("block")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--force",
    is_flag=True,
    help="Reset even if a derivative has read the removed blocks; the derivative is then stalled.",
)
@output_option
def reset_command(*, dataset: str, block: str, yes: bool, force: bool, output: str) -> None:
    """Move a dataset's head back to BLOCK, removing all later blocks. Refused if a derivative has read them.

    BLOCK is a sequence number, a hash, or at least 8 characters of its beginning or end. Without --yes the command says
    how many blocks and records it will remove, and asks. With --force it is not refused; `odf pull --reset-derivatives
    DATASET` then rolls back the derivatives and recomputes them.

    \b
    Example:
      odf reset flights 12
      odf reset flights 3fd51a2c --yes
      odf reset flights 3fd51a2c --force && odf pull --reset-derivatives flights
    """
    require_block_name(block)
    with clients.coordinator() as coordinator:
        if yes:
            head = _full_hash(coordinator, dataset, block)
        else:
            items = [*_log(coordinator, dataset)]
            head = find_block(items, dataset, block).hash
            removed = [*takewhile(lambda item: item.hash != head, items)]
            if removed:
                confirm(_question(dataset, removed))
        summary = coordinator.Reset(
            ResetRequest(ref=dataset, head=head, force=force), timeout=clients.COMMAND_TIMEOUT_SECONDS
        )
    say_if_private([dataset])
    print_object(summary_row(summary), output)


def _question(dataset: str, removed: Sequence[BlockItem]) -> str:
    """Return the question whether to remove these blocks, given newest first."""
    blocks = [decode_block(item.content).block for item in removed]
    slices = [block.event.new_data for block in blocks if isinstance(block.event, DataEvent)]
    records = sum(data.offset_interval.records for data in slices if data is not None)
    last, first = blocks[0].sequence_number, blocks[-1].sequence_number
    which = f"block {first}" if first == last else f"the {len(blocks)} blocks {first} to {last}"
    return f"Remove {which} of {dataset}, with {records} record{'' if records == 1 else 's'}?"


def _full_hash(coordinator: CoordinatorStub, dataset: str, block: str) -> str:
    """Return the full hash of a block; the chain is read only if `block` is not a full hash."""
    try:
        return str(Multihash.parse(block))
    except InvalidInput:
        return find_block(_log(coordinator, dataset), dataset, block).hash


def _log(coordinator: CoordinatorStub, dataset: str) -> Iterator[BlockItem]:
    """Iterate over all blocks of a dataset, newest first."""
    items: Iterator[BlockItem] = coordinator.Log(
        LogRequest(ref=dataset), timeout=clients.STREAM_TIMEOUT_SECONDS
    )
    return items


@click.command("compare")
@click.argument("left")
@click.argument("right")
@output_option
def compare_command(*, left: str, right: str, output: str) -> int:
    """Show whether LEFT is equal to RIGHT, ahead, behind or diverged, and their last common block.

    Each is a dataset, or one of its references as DATASET@NAME. RIGHT may be a URL or REPO/DATASET, as for
    `odf pull`. Exit status 0: equal; 4: not equal.

    \b
    Example:
      odf compare flights flights@candidate
      odf compare flights https://example.org/flights
    """
    compared = _compare(left, right)
    print_object(
        {"left": left, "right": right, **comparison_row(compared, "only_left", "only_right")}, output
    )
    return ExitCode.OK if compared.relation == "equal" else ExitCode.NOT_EQUAL


def _compare(left: str, right: str) -> Comparison:
    if is_remote(left):
        text = "a remote dataset must be on the right; give this node's dataset first"
        raise InvalidInput(text=text, where=absolute_url(left))
    comparison: Comparison
    if is_remote(right):
        request = SyncCompareRequest(ref=left, url=absolute_url(right))
        with clients.sync() as sync:
            comparison = sync.Compare(request, timeout=clients.STREAM_TIMEOUT_SECONDS)
    else:
        with clients.coordinator() as coordinator:
            comparison = coordinator.Compare(
                CompareRequest(left=left, right=right), timeout=clients.STREAM_TIMEOUT_SECONDS
            )
    return comparison


MAX_EVENT_BYTES = 16 * 1024 * 1024  # of one event


@click.command("commit")
@dataset_argument
@click.argument("events", nargs=-1, required=True)
@output_option
def commit_command(*, dataset: str, events: tuple[str, ...], output: str) -> None:
    """Commit metadata events, each a file of YAML or JSON, to a dataset; - is standard input.

    All files are read first, then the events are committed in the order given. Events that would change nothing
    are skipped. AddData, ExecuteTransform and Seed are refused: only the node writes them.

    \b
    Example:
      echo '{kind: SetInfo, description: Departures of 2013}' | odf commit flights -
    """
    read = [(name, event_from_text(read_limited(name, MAX_EVENT_BYTES), shown_name(name))) for name in events]
    rows: list[dict[str, object]] = []
    try:
        with clients.coordinator() as coordinator:
            for _, event in read:
                request = CommitEventRequest(ref=dataset, event=encode_event(event))
                summary = coordinator.CommitEvent(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
                rows.append({"alias": summary.alias, "event": type(event).__name__, "head": summary.head})
    except OdfError:
        # Each event is its own block: those before the error are already in the chain.
        if rows:
            print_rows(rows, output)
        if len(read) > 1:
            remark(f"stopped at {shown_name(read[len(rows)][0])}")
        raise
    if any(isinstance(event, SetTransform) for _, event in read):
        say_if_private([dataset])
    print_rows(rows, output)
