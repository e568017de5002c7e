"""`odf ref`: named references next to a dataset's head."""

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_object, print_rows, remark
from odf_cli.rows import comparison_row, summary_row
from odf_cli.suggestions import CommandGroup
from odf_cli.visibility import say_if_private
from odf_common.proto.odf.node.v1.coordinator_pb2 import (
    DeleteRefRequest,
    FastForwardRequest,
    ListRefsRequest,
    RefItem,
    SetRefRequest,
)

EXPECTED = click.option(
    "--expected",
    metavar="BLOCK",
    help="Only if the reference is at this block; 'none': only if it does not exist. Default: unconditionally.",
)


@click.group("ref", cls=CommandGroup)
def command() -> None:
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


@command.command("list")
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
    print_rows([_row(ref) for ref in answer.refs], output)


@command.command("set")
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
    print_object(_row(item), output)


@command.command("delete")
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


@command.command("fast-forward")
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


def _row(item: RefItem) -> dict[str, object]:
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
