"""`odf system`: manage the node's disk; chains stay as they are."""

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import confirm, output_option, print_object
from odf_cli.suggestions import CommandGroup
from odf_common.proto.odf.node.v1.coordinator_pb2 import DropDataRequest


@click.group("system", cls=CommandGroup)
def command() -> None:
    """Free space on the node's disk.

    \b
    Example:
      odf system drop-data flights.delays.hourly --yes
    """


@command.command("drop-data")
@dataset_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def drop_data(*, dataset: str, yes: bool, output: str) -> None:
    """Delete the data slices and checkpoints of a derivative; its chain stays, and `odf pull` recomputes them.

    Refused for roots and copies, if an input no longer has the blocks that the derivative read, and if the data was
    computed by another engine or engine version.

    \b
    Example:
      odf system drop-data flights.delays.hourly --yes
      odf pull flights.delays.hourly
    """
    if not yes:
        confirm(f"Delete the data of {dataset}? The next pull recomputes it.")
    with clients.coordinator() as coordinator:
        dropped = coordinator.DropData(DropDataRequest(ref=dataset), timeout=clients.STREAM_TIMEOUT_SECONDS)
    row = {"dataset": dropped.alias, "slices": dropped.slices, "checkpoints": dropped.checkpoints}
    print_object({**row, "bytes": dropped.size}, output)
