"""`odf commit DATASET EVENT.yaml…`: append raw metadata events to a dataset's chain."""

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_rows, remark
from odf_cli.user_input import read_limited, shown_name
from odf_cli.visibility import say_if_private
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.manifests import event_from_text
from odf_common.errors import OdfError
from odf_common.metadata.events import SetTransform
from odf_common.proto.odf.node.v1.coordinator_pb2 import CommitEventRequest

MAX_EVENT_BYTES = 16 * 1024 * 1024  # of one event


@click.command("commit")
@dataset_argument
@click.argument("events", nargs=-1, required=True)
@output_option
def command(*, dataset: str, events: tuple[str, ...], output: str) -> None:
    """Commit metadata events, each a file of YAML or JSON, to a dataset; - is standard input.

    All files are read first, then the events are committed in the order given. Events that would change nothing
    are skipped. AddData, ExecuteTransform and Seed are refused: only the node writes them.

    \b
    Example:
      echo '{kind: SetInfo, description: Departures of 2013}' | odf commit flights -
    """
    read = [(name, event_from_text(read_limited(name, MAX_EVENT_BYTES), shown_name(name))) for name in events]
    rows: list[dict[str, object]] = []
    try:
        with clients.coordinator() as coordinator:
            for _, event in read:
                request = CommitEventRequest(ref=dataset, event=encode_event(event))
                summary = coordinator.CommitEvent(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
                rows.append({"alias": summary.alias, "event": type(event).__name__, "head": summary.head})
    except OdfError:
        # Each event is its own block: those before the error are already in the chain.
        if rows:
            print_rows(rows, output)
        if len(read) > 1:
            remark(f"stopped at {shown_name(read[len(rows)][0])}")
        raise
    if any(isinstance(event, SetTransform) for _, event in read):
        say_if_private([dataset])
    print_rows(rows, output)
