"""Peers of one new block: git and rclone transfer the newest file of a folder that the other side has without it.

git has it in a commit after one with all others; rclone skips the files that exist. The measured time includes the
starts of their processes.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from transfer_peers import (
    bare_clone,
    commit_all,
    delayed_by,
    git_fetch,
    git_push,
    has_rclone,
    rclone_pull,
    rclone_push,
    served_by_git,
    served_by_rclone,
    timed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestFile:
    """A folder, a copy of it without the newest file, and repositories of both."""

    full: Path
    older: Path
    full_repository: Path
    older_repository: Path

    @classmethod
    def of(cls, full: Path, older: Path, work: Path) -> Self:
        """Create the repositories in a new folder."""
        repository, older_repository = work / "full", work / "older"
        shutil.copytree(older, repository, copy_function=os.link)
        commit_all(repository)
        bare_clone(repository, older_repository)
        shutil.rmtree(repository / "refs")  # linked files, which must not be written
        for folder in full.iterdir():
            for file in folder.iterdir():
                target = repository / folder.name / file.name
                if not target.exists():
                    target.parent.mkdir(exist_ok=True)
                    os.link(file, target)
        commit_all(repository)
        return cls(full=full, older=older, full_repository=repository, older_repository=older_repository)

    def git_fetch(self, delay: float) -> float:
        """Return the seconds of a fetch, with a delay in seconds."""
        with (
            _copy_of(self.older_repository) as copy,
            served_by_git(self.full_repository) as port,
            delayed_by(port, delay) as delayed,
        ):
            return timed(lambda: git_fetch(delayed, copy))

    def git_push(self, delay: float) -> float:
        """Return the seconds of a push."""
        with (
            _copy_of(self.older_repository) as copy,
            served_by_git(copy) as port,
            delayed_by(port, delay) as delayed,
        ):
            return timed(lambda: git_push(delayed, self.full_repository))

    def rclone_pull(self, delay: float) -> float:
        """Return the seconds of a copy by http."""
        with (
            _copy_of(self.older) as copy,
            served_by_rclone(self.full, "http") as port,
            delayed_by(port, delay) as delayed,
        ):
            return timed(lambda: rclone_pull(delayed, copy, "--ignore-existing"))

    def rclone_push(self, delay: float) -> float:
        """Return the seconds of a copy by SFTP."""
        with (
            _copy_of(self.older) as copy,
            served_by_rclone(copy, "sftp") as port,
            delayed_by(port, delay) as delayed,
        ):
            return timed(lambda: rclone_push(delayed, self.full, "--ignore-existing"))


Peers = Mapping[str, Callable[[NewestFile, float], float]]

PULLS: Final[Peers] = {"git fetch": NewestFile.git_fetch} | (
    {"rclone copy, http": NewestFile.rclone_pull} if has_rclone() else {}
)
PUSHES: Final[Peers] = {"git push": NewestFile.git_push} | (
    {"rclone copy, SFTP": NewestFile.rclone_push} if has_rclone() else {}
)


@contextmanager
def _copy_of(folder: Path) -> Iterator[Path]:
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy, copy_function=os.link)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)
