"""`odf flow`: run flows now, and show their runs."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from odf_cli import clients
from odf_cli.output import output_option, print_rows
from odf_cli.resource_requests import complete_flow
from odf_cli.suggestions import CommandGroup
from odf_common.proto.odf.node.v1 import resources_pb2 as pb

COLUMNS: Final = ("run", "target", "trigger", "state", "requested", "seconds", "message")
WATCH_SECONDS: Final = 1.0
Run = Mapping[str, Any]


@click.group("flow", cls=CommandGroup)
def flow_command() -> None:
    """Run the flows of the node now, and show their runs. Flows are Flow resources, see `odf apply`.

    \b
    Example:
      odf flow run nightly
      odf flow runs nightly
    """


@flow_command.command("run")
@click.argument("name", shell_complete=complete_flow)
@click.option("--target", default="", help="Only for this resource: its name, id or DID.")
@click.option("--account", default="", help="Account that owns the flow.")
@output_option
def run(*, name: str, target: str, account: str, output: str) -> None:
    """Start runs of a flow now, one for each target; a run that is in progress is followed by another one.

    \b
    Example:
      odf flow run nightly
      odf flow run nightly --target rivers.hourly
    """
    with clients.flows() as service:
        reply = service.RunFlow(_request(name, target, account), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    _print([json.loads(one) for one in reply.runs], output)


@flow_command.command("runs")
@click.argument("name", shell_complete=complete_flow)
@click.option("--target", default="", help="Only for this resource: its name, id or DID.")
@click.option("--account", default="", help="Account that owns the flow.")
@click.option("--watch", is_flag=True, help="Print runs as they start and end, until Ctrl-C.")
@output_option
def runs(*, name: str, target: str, account: str, watch: bool, output: str) -> None:
    """Print the runs of a flow, newest first; --output json has their tasks.

    \b
    Example:
      odf flow runs nightly
      odf flow runs nightly --watch
    """
    request = _request(name, target, account)
    with clients.flows() as service:

        def read() -> list[Run]:
            reply = service.ListFlowRuns(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
            return [json.loads(one) for one in reply.runs]

        _print(read(), output)
        if watch:
            _watch(read, output)


def _watch(read: Callable[[], Sequence[Run]], output: str) -> None:
    seen = {(run["run"], run["state"]) for run in read()}
    while True:
        time.sleep(WATCH_SECONDS)
        new = [run for run in read() if (run["run"], run["state"]) not in seen]
        seen |= {(run["run"], run["state"]) for run in new}
        if new:
            _print(new[::-1], output)


def _request(name: str, target: str, account: str) -> pb.FlowRunsRequest:
    return pb.FlowRunsRequest(flow=name, target=target, account=account)


def _print(found: Sequence[Run], output: str) -> None:
    print_rows([_row(run) for run in found] if output == "table" else found, output, columns=COLUMNS)


def _row(run: Run) -> dict[str, object]:
    messages = [task["message"] for task in run["tasks"] if task["message"]]
    started, finished = run["startedAt"], run["finishedAt"]
    return {
        "run": run["run"],
        "target": run["target"]["name"],
        "trigger": run["trigger"],
        "state": run["state"],
        "requested": run["requestedAt"],
        "seconds": round(_seconds(finished) - _seconds(started), 1) if started and finished else "",
        "message": messages[0] if messages else "",
    }


def _seconds(text: str) -> float:
    from odf_common.metadata.scalars import Timestamp

    return Timestamp.parse(text).ms / 1000
