"""`odf system`: what concerns the node's own disk rather than what datasets say."""

import click

from odf_common.proto.odf.node.v1.coordinator_pb2 import DropDataRequest
from odf_common.runtime import ask
from odf_common.runtime.output import confirm, output_option, print_object


@click.group("system")
def command() -> None:
    """Free space on the node's disk.

    \b
    Example:
      odf system drop-data flights.delays.hourly --yes
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@command.command("drop-data")
@click.argument("dataset")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
def drop_data(*, dataset: str, yes: bool, output: str) -> None:
    """Delete the data slices and checkpoints of a derivative; its chain stays, and odf pull makes them again.

    Refused for roots and copies, where an input no longer has what the derivative saw of it, and where another engine,
    or another version of it, computed the data.

    \b
    Example:
      odf system drop-data flights.delays.hourly --yes
      odf pull flights.delays.hourly
    """  # noqa: D301
    if not yes:
        confirm(f"Delete the data of {dataset} until the next pull makes it again?")
    with ask.coordinator() as coordinator:
        dropped = coordinator.DropData(DropDataRequest(ref=dataset), timeout=ask.WORK)
    row = {"dataset": dropped.alias, "slices": dropped.slices, "checkpoints": dropped.checkpoints}
    print_object({**row, "bytes": dropped.size}, output)
