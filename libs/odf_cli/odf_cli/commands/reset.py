"""`odf reset DATASET BLOCK`: move the head back to a block of the chain."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument, find_block, require_block_name
from odf_cli.output import confirm, output_option, print_object
from odf_cli.rows import summary_row
from odf_cli.visibility import say_if_private
from odf_common.codec.flatbuffers import decode_block
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent
from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem, LogRequest, ResetRequest
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub


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
def command(*, dataset: str, block: str, yes: bool, force: bool, output: str) -> None:
    """Move a dataset's head back to BLOCK, removing all later blocks. Refused if a derivative has read them.

    BLOCK is a sequence number, a hash, or at least 8 characters of its beginning or end. Without --yes the command says
    how many blocks and records it will remove, and asks. With --force it is not
    refused; `odf pull --reset-derivatives DATASET` then rolls back the derivatives and recomputes them.

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
    """Return the question whether to remove these blocks, newest first."""
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
