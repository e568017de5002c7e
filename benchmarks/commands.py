"""Processor time of whole commands on a running node, compared with importing gRPC and click alone.

Imports are most of a short command's time. Each round runs all commands and the peer once, beginning with another one;
the smallest time of each counts, since other processes can only add to it.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from departures import LEDGER, messages
from node_under_test import BenchedNode
from rows import Row, Target, held_against

NAME: Final = "commands"
ROUNDS: Final = 9
PEER: Final = "import grpc, click"
LITTLE_MORE: Final = Target(judged="ratio", sense="≤", bound=1.3)
COMMANDS: Final = {
    "list": ("list",),
    "tail": ("tail", NAME),
    "ingest, one record": ("ingest", NAME, "-"),
    "status": ("status",),
    "pull, up to date": ("pull", NAME),
}


def run(node: BenchedNode) -> list[Row]:
    """Return the processor time of each command, in ms."""
    node.add(NAME, LEDGER)
    odf = str(Path(sys.executable).with_name("odf"))
    works: dict[str, Sequence[str]] = {name: (odf, *arguments) for name, arguments in COMMANDS.items()}
    works[PEER] = (sys.executable, "-c", PEER)
    environment = {**os.environ, "ODF_HOME": str(node.embedded.home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed command is compiled once
    names, used = list(works), {name: list[float]() for name in works}
    for number in range(ROUNDS):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            used[name].append(_processor_ms(works[name], messages()[number], environment))
    peer = min(used.pop(PEER))
    return [
        held_against(f"odf {name}", min(times), "ms", peer=(PEER, peer), target=LITTLE_MORE)
        for name, times in used.items()
    ]


def _processor_ms(command: Sequence[str], record: bytes, environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, input=record, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000
