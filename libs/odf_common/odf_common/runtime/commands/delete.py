"""`odf delete DATASET…`: refused while something depends on it."""

import click

from odf_common.proto.odf.node.v1.coordinator_pb2 import DeleteRequest
from odf_common.runtime import ask
from odf_common.runtime.output import remark


@click.command("delete")
@click.argument("datasets", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(*, datasets: tuple[str, ...], yes: bool) -> None:
    """Delete datasets with their chain, data and push topics; refused while another is derived of them.

    \b
    Example:
      odf delete flights.late --yes
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if not yes:
        click.confirm(f"Delete {', '.join(datasets)} for ever?", abort=True, err=True)
    with ask.coordinator() as coordinator:
        for dataset in datasets:
            coordinator.Delete(DeleteRequest(ref=dataset), timeout=ask.ANSWER)
            remark(f"deleted {dataset}")
