"""Reads a Dockerfile, and executes a stage's steps in an empty folder instead of an image's root, without an engine.

Steps that only change the system of an image (packages, users) are left out. The others find the programs that the base
image has, and those of the packages that were installed before. Paths of the image are paths below the folder; stages
that are built on each other share it.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SYSTEM: Final = ("apt-get ", "groupadd ", "install ")
ROOTS: Final = ("/build", "/opt/odf")  # folders that steps write to
# Of Debian's essential packages; the image has Python too, and no make, compiler, curl or git.
BASE_PROGRAMS: Final = (
    "awk", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dirname", "env", "expr", "find", "grep", "head", "id",
    "ln", "ls", "mkdir", "mktemp", "mv", "printf", "pwd", "readlink", "realpath", "rm", "rmdir", "sed", "sh", "sort", "tail",
    "tar", "test", "touch", "tr", "true", "uname", "uniq", "wc", "xargs",
)  # fmt: skip
_INSTALLED: Final = re.compile(r"apt-get install((?: +[\w.+-]+)+)")
IGNORED: Final = shutil.ignore_patterns("tests", "__pycache__", "*.egg-info", "dist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An instruction and its argument."""

    instruction: str
    argument: str


@dataclass(slots=True)
class Stage:
    """A stage: its base, and its steps."""

    name: str
    base: str
    steps: list[Step] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        """Return the argument of the last such instruction; empty without one."""
        return next((step.argument for step in reversed(self.steps) if step.instruction == instruction), "")


def read(file: Path) -> Mapping[str, Stage]:
    """Return the stages by name."""
    stages: dict[str, Stage] = {}
    for line in _instructions(file.read_text()):
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            stages[name] = Stage(name, base)
        elif stages:
            stages[list(stages)[-1]].steps.append(Step(instruction=instruction, argument=argument.strip()))
    return stages


def lineage(stages: Mapping[str, Stage], name: str) -> list[Stage]:
    """Return a stage and those that it is built on or copies from, first ones first."""
    stage = stages[name]
    copied = [
        step.argument.removeprefix("--from=").split()[0]
        for step in stage.steps
        if step.argument.startswith("--from=")
    ]
    before = [one for base in (stage.base, *copied) if base in stages for one in lineage(stages, base)]
    names = dict.fromkeys((*(one.name for one in before), name))
    return [stages[one] for one in names]


def carry_out(stages: Sequence[Stage], checkout: Path, root: Path, *, executed: Collection[str] = ()) -> None:
    """Execute the steps of stages in order, without those of the stages that were executed in this folder before."""
    folder, programs = root, root / "programs"
    programs.mkdir(exist_ok=True)
    _provide(programs, BASE_PROGRAMS)
    for stage in stages:
        for step in stage.steps:
            match step.instruction:
                case "WORKDIR":
                    folder = root / step.argument.lstrip("/")
                    folder.mkdir(parents=True, exist_ok=True)
                case _ if stage.name in executed:
                    pass
                case "COPY" if not step.argument.startswith("--from="):
                    source, target = step.argument.split()
                    _copy(checkout / source, folder / target)
                case "RUN" if step.argument.startswith(SYSTEM):
                    _provide(programs, _packages(step.argument))
                case "RUN":
                    _run(step.argument, folder, root)
                case _:
                    pass


def _packages(command: str) -> Iterator[str]:
    for words in _INSTALLED.findall(command):
        yield from (word for word in words.split() if not word.startswith("-"))


def _provide(folder: Path, names: Iterable[str]) -> None:
    """Link programs of this machine into a folder; a package's name stands for the program of that name."""
    for name in names:
        program = shutil.which(name)
        if program is not None and not (folder / name).exists():
            (folder / name).symlink_to(program)


def _instructions(text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    yield from "\n".join(lines).replace("\\\n", " ").splitlines()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=IGNORED, dirs_exist_ok=True)
        shutil.rmtree(target / "odf_common" / "odf_common" / "proto", ignore_errors=True)
    else:
        shutil.copy(source, target / source.name if target.is_dir() else target)


def _run(command: str, folder: Path, root: Path) -> None:
    for path in ROOTS:
        command = command.replace(path, shlex.quote(f"{root}{path}"))
    path = f"{sys.base_prefix}/bin:{root / 'programs'}"
    environment = {"PATH": path, "HOME": str(root), "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
