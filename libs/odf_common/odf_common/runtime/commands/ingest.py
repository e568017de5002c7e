"""`odf ingest DATASET [FILE…|-]`: each file is one batch, committed when the command returns."""

import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import click

from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.ingest_pb2 import PushHeader, PushPart, PushReply
from odf_common.runtime import ask
from odf_common.runtime.idempotency import key_in_run
from odf_common.runtime.node import Node
from odf_common.runtime.output import output_option, print_rows

STAGING = "staging"


@click.command("ingest")
@click.argument("dataset")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--source", default="", help="Push source; needed when the dataset has several.")
@click.option("--event-time", metavar="T", help="Event time of records that have none, RFC 3339.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="A command that is repeated with the same key and files commits only what was not. The last 64 keys count.",
)
@output_option
def command(
    *,
    dataset: str,
    files: tuple[str, ...],
    source: str,
    event_time: str | None,
    idempotency_key: str | None,
    output: str,
) -> None:
    """Append files to a dataset; each FILE is one batch, - is standard input.

    \b
    Example:
      odf ingest flights flights.ndjson
      zcat flights.ndjson.gz | odf ingest flights -
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    moment = None if event_time is None else Timestamp.parse(event_time).ns
    node = ask.this_node()
    rows = []
    for number, file in enumerate(files or ("-",)):
        key = key_in_run(idempotency_key, number) if idempotency_key else uuid.uuid4().hex
        header = PushHeader(ref=dataset, source_name=source, event_time=moment, idempotency_key=key)
        reply = _push(node, header, file)
        rows.append({"file": file, "records": reply.records, "already": reply.already, "head": reply.head})
    print_rows(rows, output, columns=("file", "records", "head"))


def _push(node: Node, header: PushHeader, file: str) -> PushReply:
    with _staged(node, file) as name, ask.ingest(node) as ingest:
        header.staged = name
        reply: PushReply = ingest.Push(iter((PushPart(header=header),)), timeout=ask.WORK)
        return reply


@contextmanager
def _staged(node: Node, file: str) -> Iterator[str]:
    """Copy the batch into the node's staging folder, so that it cannot change under the node's hands."""
    folder = node.home / STAGING
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / uuid.uuid4().hex
    try:
        if file == "-":
            with target.open("wb") as out:
                shutil.copyfileobj(sys.stdin.buffer, out)
        else:
            shutil.copyfile(file, target)
        yield target.name
    finally:
        target.unlink(missing_ok=True)
