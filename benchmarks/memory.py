"""Peak memory of the processes of a case, as the kernel counts it: resident, in MB, `VmHWM` of each process.

Processes are sampled while the case runs, so an increase in the last `SAMPLE_INTERVAL_SECONDS` of one may be missed.
A case's processes are those below it, and those of a node that it started, which are detached but inherit a variable;
they are named by part or program, and of several with one name, the largest is used. Of a node that was given, a part
has the sum of its processes, in which pages that they share count twice; its peaks are reset with each case.
"""

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from node_under_test import BenchedNode, family, parents_of_all

SAMPLE_INTERVAL_SECONDS: Final = 0.25
CASE: Final = "case"
RESET: Final = "5"  # to /proc/PID/clear_refs
WORKER: Final = "--multiprocessing-fork"
TRACKER: Final = "multiprocessing.resource_tracker"
LAUNCHER: Final = "die_with_parent.py"  # soon replaced by a part
SUPERVISOR: Final = "odf_cli.embedded"
MARK: Final = "BENCHMARK"  # the variable that all processes of a case have
PART: Final = "ODF_PART"  # what a node's supervisor sets for each part
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
        self._mark = uuid.uuid4().hex
        self._strangers: set[int] = set()

    def __enter__(self) -> Self:
        """Start measuring."""
        for processes in self._parts().values():
            for pid in processes:
                _reset(pid)
        os.environ[MARK] = self._mark
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the last sample."""
        self._ended.set()
        self._thread.join()
        del os.environ[MARK]
        self._note({part: sum(map(_peak, processes)) for part, processes in self._parts().items()})

    def _look(self) -> None:
        while not self._ended.wait(SAMPLE_INTERVAL_SECONDS):
            parents = parents_of_all()
            below = family(os.getpid(), parents) - {os.getpid()}
            for pid in below | self._detached(parents.keys() - below, parents):
                if name := _name(pid, parents):
                    self._note({name: _peak(pid)})

    def _detached(self, others: AbstractSet[int], parents: Mapping[int, int]) -> set[int]:
        """Return the processes that the case started and that are no longer below it, and those below them."""
        new = others - self._strangers
        marked = {pid for pid in new if _variables(pid).get(MARK) == self._mark}
        found = {pid for start in marked for pid in family(start, parents)}  # some start without the mark
        self._strangers |= new - found
        return found

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
    """Return the name of a process; empty if it has ended or only serves another."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
        given = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    program = Path(words[0]).name
    if program in HELPERS or any(TRACKER in word or word.endswith(LAUNCHER) for word in words):
        return ""
    if WORKER in words:
        return CASE if given.startswith("python") else given
    part = _variables(pid).get(PART, "")
    if program == "java" and part == _variables(parents.get(pid, 0)).get(PART, ""):
        return f"{_owner(pid, parents).removesuffix(JVM)}{JVM}"
    return part or _program(words)


def _program(words: Sequence[str]) -> str:
    """Return the name of what a command line runs: a program, or Python's module or file."""
    program = Path(words[0].partition(" ")[0])  # Redis writes its address there
    if not program.name.startswith("python"):
        # The tests' MinIO is a file of a version in a folder with its name.
        return program.parent.name if program.name.startswith("v0.") else program.name
    if "-c" in words:
        return "python -c"
    if "-m" in words:
        module = words[words.index("-m") + 1]
        return "supervisor" if module == SUPERVISOR else module
    # A script of an environment, such as `odf`, has no suffix.
    return next((Path(word).name for word in words[1:] if not word.startswith("-")), program.name)


def _variables(pid: int) -> Mapping[str, str]:
    """Return the environment with which a process started; empty if it has ended."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


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
