"""A warm node in its own folder, as benchmarks use it: datasets, commits, and processor time."""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from departures import LEDGER, manifest, messages
from odf_testing.embedded import EmbeddedNode

from odf_cli import clients
from odf_cli.embedded.node_file import Node
from odf_common.proto.odf.node.v1.coordinator_pb2 import AddRequest, DescribeRequest

TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
POLL: Final = 0.005  # seconds between two reads of a head
RECORDS_TIMEOUT_SECONDS: Final = 120.0
STARTING: Final = 400.0  # seconds, enough for a busy machine
IDLE_CORES: Final = 0.05  # a node that uses fewer is idle
NOT_OURS: Final = ("kafka",)  # the broker's time is not counted as ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Seconds of processor time that the parts of a node have used."""

    by_part: dict[str, float]

    @property
    def seconds(self) -> float:
        """Return the sum."""
        return sum(self.by_part.values())

    def since(self, before: "Effort") -> "Effort":
        """Return the time used since an earlier measurement."""
        return Effort(
            by_part={name: used - before.by_part.get(name, 0.0) for name, used in self.by_part.items()}
        )


class BenchedNode:
    """A running node."""

    def __init__(self, embedded: EmbeddedNode) -> None:
        """Use a running node."""
        self.embedded = embedded
        self.node: Node = embedded.node

    def add(self, name: str, merge: str) -> None:
        """Create a root dataset of departures, with the call of `odf add`."""
        request = AddRequest()
        request.manifests.add(name=name, text=manifest(name, merge).encode())
        with clients.coordinator(self.node) as coordinator:
            coordinator.Add(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)

    def warm_up(self) -> None:
        """Commit one record, so that everything is loaded that is loaded on first use."""
        self.add("warm", LEDGER)
        self.embedded.run("ingest warm -", stdin=messages()[0])
        self.embedded.run("verify warm")

    def topic_of(self, name: str) -> str:
        """Return the push topic that a dataset with this name will get."""
        return f"odf.push.{name}.default"

    def folder(self, name: str) -> Path:
        """Return a dataset's folder."""
        entry = next(dataset for dataset in self.listed() if dataset["alias"] == name)
        return self.embedded.home / "datasets" / str(entry["id"]).removeprefix("did:odf:")

    def listed(self) -> list[dict[str, Any]]:
        """Return all datasets."""
        datasets: list[dict[str, Any]] = self.embedded.run("list --output json")
        return datasets

    def await_records(self, name: str, count: int) -> float:
        """Return the time (monotonic) at which the dataset was seen to have that many records.

        The head's file is watched, so that looking costs the node nothing.
        """
        head = self.folder(name) / "refs" / "head"
        seen = b""
        deadline = time.monotonic() + RECORDS_TIMEOUT_SECONDS
        with clients.coordinator(self.node) as coordinator:
            while time.monotonic() < deadline:
                now, moment = head.read_bytes(), time.monotonic()
                if now == seen:
                    time.sleep(POLL)
                    continue
                seen = now
                if (
                    coordinator.Describe(
                        DescribeRequest(ref=name), timeout=clients.COMMAND_TIMEOUT_SECONDS
                    ).records
                    >= count
                ):
                    return moment
        raise TimeoutError(
            f"{name} has not got {count} records in {RECORDS_TIMEOUT_SECONDS:g} s{self.embedded.logs()}"
        )

    def effort(self) -> Effort:
        """Return processor time used so far by each part and its children, the broker's left out."""
        used = {name: seconds for name, seconds in self._used().items() if name not in NOT_OURS}
        return Effort(by_part={**used, "supervisor": _used(self.embedded.node.pid)})

    def processor_seconds(self, names: Collection[str]) -> float:
        """Return processor time used so far by some parts and their children, the broker's if it is named."""
        return sum(seconds for name, seconds in self._used().items() if name in names)

    def _used(self) -> dict[str, float]:
        return {
            name: sum(_used(process) for process in processes) for name, processes in self.processes().items()
        }

    def processes(self) -> dict[str, set[int]]:
        """Return the processes of each part, the supervisor's own left out."""
        parents, node = parents_of_all(), self.embedded.node
        parts = {part.name: part.pid for part in (*node.services, *node.parts) if part.pid is not None}
        return {name: family(pid, parents) for name, pid in parts.items()}

    def settle(self, timeout: float = 20.0) -> None:
        """Return when the node is idle."""
        deadline = time.monotonic() + timeout
        before = self.effort()
        while time.monotonic() < deadline:
            time.sleep(0.5)
            now = self.effort()
            if now.since(before).seconds < 0.5 * IDLE_CORES:
                return
            before = now


@contextmanager
def running_node(home: Path) -> Iterator[BenchedNode]:
    """Start a node, and always stop it."""
    embedded = EmbeddedNode(home, {"ODF_FETCH_NETWORKS": "127.0.0.0/8"})
    embedded.run("up --detach", timeout=STARTING)
    try:
        node = BenchedNode(embedded)
        node.warm_up()
        yield node
    finally:
        embedded.down()


def parents_of_all() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            found[int(folder.name)] = int(fields[1])
    return found


def family(pid: int, parents: Mapping[int, int]) -> set[int]:
    """Return a process and all its descendants."""
    pids = {pid}
    while grown := {child for child, parent in parents.items() if parent in pids} - pids:
        pids |= grown
    return pids


def _used(pid: int) -> float:
    """Return seconds of processor time of a process and of its children that have ended."""
    fields = _stat(pid)
    return sum(int(field) for field in fields[11:15]) * TICK if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return re.split(r"\s+", text.rpartition(")")[2].strip())
