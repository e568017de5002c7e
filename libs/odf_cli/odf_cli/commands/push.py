"""`odf push`: copy a dataset to another node, a folder or a bucket."""

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_rows, progress, remark
from odf_cli.user_input import absolute_url
from odf_common.proto.odf.node.v1.sync_pb2 import SyncPullItem, SyncPushRequest

COLUMNS = ("dataset", "state", "blocks", "records")
PUBLIC, PRIVATE = "public", "private"


@click.command("push")
@dataset_argument
@click.argument("rest", nargs=-1, metavar="")
@click.option(
    "--to",
    "target",
    metavar="URL",
    help="odf+https://HOST/[ACCOUNT/]DATASET, file:///FOLDER, s3://BUCKET/PREFIX, REPO/DATASET, or REPO for the "
    "dataset's own name there. Default: where it was pushed last.",
)
@click.option(
    "--force",
    "is_forced",
    is_flag=True,
    help="Replace the remote chain if it has diverged; its own blocks are lost.",
)
@click.option(
    "--visibility",
    type=click.Choice([PRIVATE, PUBLIC]),
    help="Who may read the dataset if this push creates it on another node. Default: private; on a single-tenant node "
    "public, unless it is private here. A dataset that exists there with another visibility is not pushed. Folders and "
    "buckets keep none.",
)
@output_option
def command(
    *,
    dataset: str,
    rest: tuple[str, ...],
    target: str | None,
    is_forced: bool,
    visibility: str | None,
    output: str,
) -> None:
    """Copy new blocks and data of DATASET to another node, a folder or a bucket.

    Readers see the new blocks at once: a node checks everything before its head moves, and in a folder or a bucket the
    head moves last. Only a node that is sent more than 16 MiB of new blocks gets them in parts, one after another, and
    readers may see a part of the push meanwhile, which is a valid chain. A diverged chain is replaced at once.
    An interrupted push continues where it stopped. It is refused if the chains have diverged.
    Data of a derivative that was dropped here is left out of a folder or a bucket; other nodes take complete datasets.

    The URL of a node, or of a repository that is one, begins with odf+; http(s):// alone can only be pulled from.

    \b
    Example:
      odf push flights --to odf+https://example.org/flights
      odf push flights --to shop/flights --visibility public
      odf push flights --to file:///srv/datasets/flights
      odf push flights --to s3://my-bucket/shared/flights
      odf push flights
    """
    if rest:
        raise click.UsageError(f"unexpected {rest[0]!r}; the destination is an option: --to {rest[0]}")
    target = absolute_url(target or "")
    request = SyncPushRequest(
        dataset=dataset,
        target=target,
        is_forced=is_forced,
        is_public=visibility == PUBLIC,
        is_private=visibility == PRIVATE,
    )
    last = SyncPullItem()
    with clients.sync() as sync, progress() as bars:
        task = bars.add_task(dataset, total=None)
        for last in sync.Push(request, timeout=clients.STREAM_TIMEOUT_SECONDS):
            if last.is_private:
                remark(
                    f"warning: {last.alias} is private here; whoever can read {last.target} can read it there"
                )
            if last.state == "replacing":
                remark(f"warning: replacing the chain there, whose head is {last.replaced}")
            bars.update(
                task, description=f"{last.alias}: {last.state}", completed=last.done, total=last.total or None
            )
    remark(f"copied to {last.target}" if last.state == "updated" else f"nothing new for {last.target}")
    if last.missing_objects:
        remark(
            f"files that were dropped here and not sent: {last.missing_objects}; who pulls {last.alias} from there can "
            "recompute them from its inputs"
        )
    row = {"dataset": last.alias, "state": last.state, "blocks": last.new_blocks, "records": last.new_records}
    print_rows([{**row, "head": last.head, "missingFiles": last.missing_objects}], output, columns=COLUMNS)
