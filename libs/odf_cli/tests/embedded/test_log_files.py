"""Logs are bounded while parts write to them, and lose next to nothing."""

import asyncio
import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from odf_cli.embedded.parts.log_files import LogLimits, keep_bounded, open_log, rotate, shorten
from odf_cli.embedded.parts.managed_process import PartProcess, PartSpec
from odf_common.service.settings import child_environment

LIMITS: Final = LogLimits(max_bytes=1000, kept=3, check_seconds=0.01)
# Like a part that knows nothing of rotation: it writes whole lines to the file that it has inherited.
WRITER: Final = "import os\nn = 0\nwhile True:\n    os.write(1, b'line %09d of the part\\n' % n)\n    n += 1"
LINE: Final = re.compile(rb"line (\d{9}) of the part\n")
LINE_BYTES: Final = 27
ROTATIONS: Final = 4  # whose ends are in the logs that exist


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_logs_are_rotated_and_three_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    for number in range(6):
        log.write_text(str(number))
        rotate(log)
    assert written(tmp_path) == {"part.log.1": b"5", "part.log.2": b"4", "part.log.3": b"3"}


def test_a_log_that_is_too_long_is_emptied_under_its_writer(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    with open_log(log) as writer:
        for number in range(6):
            content = str(number).encode() * 1001
            writer.write(content)
            writer.flush()
            assert shorten(log, LIMITS)
            assert log.stat().st_size == 0
            writer.write(b"next")
            writer.flush()
            assert log.read_bytes() == b"next"
            assert not shorten(log, LIMITS)
            os.truncate(log, 0)
    kept = {f"part.log.{number}": str(6 - number).encode() * 1001 for number in (1, 2, 3)}
    assert written(tmp_path) == {"part.log": b"", **kept}


@pytest.mark.waits
def test_a_part_that_writes_without_end_has_logs_of_bounded_size(tmp_path: Path) -> None:
    limits = LogLimits(max_bytes=64 * 1024, check_seconds=0.01)

    async def story() -> None:
        spec = PartSpec(
            name="part",
            command=(sys.executable, "-c", WRITER),
            environment=child_environment(),
            probe=_ready,
        )
        part = PartProcess(spec, tmp_path, lambda: None)
        running = asyncio.create_task(part.run())
        bounding = asyncio.create_task(keep_bounded(tmp_path, limits))
        async with asyncio.timeout(60):
            while not (tmp_path / "part.log.3").exists():  # noqa: ASYNC110 - another process writes
                await asyncio.sleep(0.01)
        assert part.pid is not None
        os.killpg(part.pid, signal.SIGSTOP)
        while (tmp_path / "part.log").stat().st_size > limits.max_bytes:  # noqa: ASYNC110 - a thread shortens it
            await asyncio.sleep(0.01)
        bounding.cancel()
        await part.stop(0)
        await running

    asyncio.run(story())
    logs = written(tmp_path)
    text = b"".join(logs.pop(name, b"") for name in ("part.log.3", "part.log.2", "part.log.1", "part.log"))
    assert logs == {}
    numbers = [int(number) for number in LINE.findall(text)]
    torn = LINE.sub(b"", text)
    assert len(torn) < ROTATIONS * LINE_BYTES, "one line at most is written while a log is emptied"
    assert numbers == sorted(set(numbers)), "and in order"


async def _ready() -> bool:
    return True


def test_logs_are_for_their_owner_alone(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_bytes(b"before" * 1000)
    log.chmod(0o644)
    open_log(log).close()
    shorten(log, LIMITS)
    assert {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in written(tmp_path)} == {
        "part.log": 0o600,
        "part.log.1": 0o600,
    }


def fail_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)


def test_a_full_disk_leaves_logs_as_they_are_until_they_are_twice_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = tmp_path / "part.log", tmp_path / "part.log.1"
    log.write_bytes(b"x" * 1999)
    other.write_bytes(b"older")
    with monkeypatch.context() as patch:
        fail_to_copy(patch)
        with pytest.raises(OSError, match="No space"):
            shorten(log, LIMITS)
        assert written(tmp_path) == {"part.log": b"x" * 1999, "part.log.1": b"older"}
        log.write_bytes(b"y" * 2000)
        assert shorten(log, LIMITS)
        assert written(tmp_path) == {"part.log": b"", "part.log.1": b"older"}
    log.write_bytes(b"z" * 1999)
    assert shorten(log, LIMITS)
    assert written(tmp_path) == {"part.log": b"", "part.log.1": b"z" * 1999, "part.log.2": b"older"}


def eventually(folder: Path, claim: Callable[[], bool]) -> None:
    async def story() -> None:
        bounding = asyncio.create_task(keep_bounded(folder, LIMITS))
        async with asyncio.timeout(10):
            while not claim():  # noqa: ASYNC110 - a thread shortens the logs
                await asyncio.sleep(0.01)
        bounding.cancel()

    asyncio.run(story())


def test_a_log_that_cannot_be_rotated_is_reported_once_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, other = tmp_path / "a.log", tmp_path / "b.log"
    for file in (failing, other):
        file.write_bytes(b"x" * 1500)
    copy, tries = shutil.copyfileobj, list[str]()

    def full(source: Any, out: Any) -> None:
        tries.append(source.name)
        if source.name == str(failing):
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(source, out)

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with capture_logs() as entries:
        eventually(tmp_path, lambda: tries.count(str(failing)) > 3)
    assert other.stat().st_size == 0
    assert [(entry["event"], entry["file"]) for entry in entries] == [
        ("cannot rotate a log, retrying", str(failing))
    ]


def test_the_start_of_a_part_has_the_lines_of_the_one_before_in_an_older_log(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    for number in range(2):
        rotate(log)
        with open_log(log) as file:
            subprocess.run([sys.executable, "-c", f"print({number})"], stdout=file, check=True)
    assert written(tmp_path) == {"part.log": b"1\n", "part.log.1": b"0\n"}
