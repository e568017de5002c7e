"""Peak memory of the processes of a case, as the kernel counts it: resident, in MB, `VmHWM` of each process.

Processes are sampled while the case runs, so an increase in the last `EVERY` seconds of one may be missed. A case's
processes are named by their program; of several with one name, the largest is used. A node's parts have theirs, with
the sum of a part's processes, in which pages that they share count twice; its peaks are reset with each case.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from node_under_test import BenchedNode, family, parents_of_all

EVERY: Final = 0.25  # seconds
CASE: Final = "case"
RESET: Final = "5"  # to /proc/PID/clear_refs
WORKER: Final = "--multiprocessing-fork"
TRACKER: Final = "multiprocessing.resource_tracker"
JVM: Final = ": JVM"
HELPERS: Final = frozenset(
    {"bash", "chmod", "jspawnhelper", "readlink", "rm", "sh"}
)  # what a JVM and its start run


class PeakMemory:
    """Measures while the block runs; `peaks` holds MB by name afterwards."""

    def __init__(self, node: BenchedNode | None) -> None:
        """Measure this process's children, and a node's parts if one is given."""
        self.peaks: dict[str, float] = {}
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        """Start measuring."""
        for processes in self._parts().values():
            for pid in processes:
                _reset(pid)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the last sample."""
        self._ended.set()
        self._thread.join()
        self._note({part: sum(map(_peak, processes)) for part, processes in self._parts().items()})

    def _look(self) -> None:
        while not self._ended.wait(EVERY):
            parents = parents_of_all()
            for pid in family(os.getpid(), parents) - {os.getpid()}:
                if name := _name(pid, parents):
                    self._note({name: _peak(pid)})

    def _note(self, peaks: Mapping[str, float]) -> None:
        for name, peak in peaks.items():
            if peak:
                self.peaks[name] = max(round(peak), self.peaks.get(name, 0))

    def _parts(self) -> Mapping[str, set[int]]:
        return {} if self._node is None else self._node.processes()


def call_this_process(name: str) -> None:
    """Give a worker of a case a separate name."""
    Path("/proc/self/comm").write_text(name)


def _name(pid: int, parents: Mapping[int, int]) -> str:
    """Return the name of a process; empty if it has ended or only serves `multiprocessing`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        given = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    if any(TRACKER in word for word in words):
        return ""
    if WORKER in words:
        return CASE if given.startswith("python") else given
    program = Path(words[0]).name
    if program in HELPERS:
        return ""
    if program == "java":
        return f"{_owner(pid, parents).removesuffix(JVM)}{JVM}"
    if "-m" in words:
        return words[words.index("-m") + 1]
    return next((Path(word).name for word in words if word.endswith(".py")), program)


def _owner(pid: int, parents: Mapping[int, int]) -> str:
    """Return the name of the nearest process above that has one."""
    pid = parents.get(pid, 0)
    while pid and not (name := _name(pid, parents)):
        pid = parents.get(pid, 0)
    return name if pid else ""


def _peak(pid: int) -> float:
    """Return a process's peak in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1000


def _reset(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(RESET)
    except (
        OSError
    ):  # it has ended, or this system has no such file: then the peak is the process's whole life
        return
