"""`odf commit DATASET EVENT.yaml…`: append raw metadata events to a dataset's chain."""

import sys
from pathlib import Path

import click

from odf_common.cli import clients
from odf_common.cli.output import output_option, print_rows, remark
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.manifests import event_from_text
from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.proto.odf.node.v1.coordinator_pb2 import CommitEventRequest

MAX_EVENT_BYTES = 16 * 1024 * 1024  # of one event
STDIN = "-"


@click.command("commit")
@click.argument("dataset")
@click.argument("events", nargs=-1, required=True)
@output_option
def command(*, dataset: str, events: tuple[str, ...], output: str) -> None:
    """Commit metadata events, each a file of YAML or JSON, to a dataset; - is standard input.

    All files are read first, then the events are committed in the order given. Events that would change nothing
    are skipped. AddData, ExecuteTransform and Seed are refused: only the node writes them.

    \b
    Example:
      echo '{kind: SetInfo, description: Departures of 2013}' | odf commit flights -
    """  # noqa: D301 - click's marker for text that must not be wrapped
    read = [(name, event_from_text(_read(name), _shown(name))) for name in events]
    rows: list[dict[str, object]] = []
    try:
        with clients.coordinator() as coordinator:
            for _, event in read:
                request = CommitEventRequest(ref=dataset, event=encode_event(event))
                summary = coordinator.CommitEvent(request, timeout=clients.CALL_TIMEOUT_SECONDS)
                rows.append({"alias": summary.alias, "event": type(event).__name__, "head": summary.head})
    except OdfError:
        # Each event is its own block: those before the error are already in the chain.
        if rows:
            print_rows(rows, output)
        if len(read) > 1:
            remark(f"stopped at {_shown(read[len(rows)][0])}")
        raise
    print_rows(rows, output)


def _read(name: str) -> bytes:
    if name == STDIN:
        text = sys.stdin.buffer.read(MAX_EVENT_BYTES + 1)
    elif Path(name).is_file():
        with Path(name).open("rb") as file:
            text = file.read(MAX_EVENT_BYTES + 1)
    else:
        raise NotFound(what=f"file {name}")
    if len(text) > MAX_EVENT_BYTES:
        raise InvalidInput(text=f"longer than {MAX_EVENT_BYTES} bytes", where=_shown(name))
    return text


def _shown(name: str) -> str:
    return "standard input" if name == STDIN else name
