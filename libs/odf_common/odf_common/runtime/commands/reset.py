"""`odf reset DATASET BLOCK`: move the head back to a block of the chain."""

import click

from odf_common.proto.odf.node.v1.coordinator_pb2 import ResetRequest
from odf_common.runtime import ask
from odf_common.runtime.output import output_option, print_object
from odf_common.runtime.tables import summary_row


@click.command("reset")
@click.argument("dataset")
@click.argument("block")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--force", is_flag=True, help="Also if a derivative has read what is forgotten; it stands still then."
)
@output_option
def command(*, dataset: str, block: str, yes: bool, force: bool, output: str) -> None:
    """Move a dataset's head back to BLOCK; what came after it is forgotten. Refused when another dataset has read it.

    With --force it is not; `odf pull --reset-derivatives DATASET` then takes back what was derived and derives it anew.

    \b
    Example:
      odf reset flights f1620… --yes
      odf reset flights f1620… --force && odf pull --reset-derivatives flights
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if not yes:
        click.confirm(f"Forget all blocks of {dataset} after {block}?", abort=True, err=True)
    with ask.coordinator() as coordinator:
        summary = coordinator.Reset(ResetRequest(ref=dataset, head=block, force=force), timeout=ask.ANSWER)
    print_object(summary_row(summary), output)
