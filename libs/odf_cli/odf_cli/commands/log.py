"""`odf log DATASET`: the metadata chain, newest block first."""

from collections.abc import Iterable, Iterator
from itertools import islice

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import echo, output_option, print_rows
from odf_cli.suggestions import NameChoice
from odf_cli.user_input import Count
from odf_common.codec.flatbuffers import decode_block
from odf_common.codec.manifests import block_to_yaml, to_plain
from odf_common.codec.model_schema import EVENTS
from odf_common.dataset.signature_check import check_signature
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent, UnknownEvent
from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem, LogRequest

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
def command(
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
