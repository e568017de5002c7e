"""`odf compare LEFT RIGHT`: how two chains are related."""

import click

from odf_cli import clients
from odf_cli.exit_codes import ExitCode
from odf_cli.name_lookup import is_remote
from odf_cli.output import output_option, print_object
from odf_cli.rows import comparison_row
from odf_cli.user_input import absolute_url
from odf_common.errors import InvalidInput
from odf_common.proto.odf.node.v1.coordinator_pb2 import CompareRequest, Comparison
from odf_common.proto.odf.node.v1.sync_pb2 import SyncCompareRequest


@click.command("compare")
@click.argument("left")
@click.argument("right")
@output_option
def command(*, left: str, right: str, output: str) -> int:
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
