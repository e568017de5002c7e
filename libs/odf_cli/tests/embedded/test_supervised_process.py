import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from odf_cli.embedded import supervisor as node
from odf_cli.embedded.node_file import Node, is_running, read_node
from odf_cli.embedded.orphans import end_leftovers, leftovers, sweep
from odf_cli.embedded.parts import managed_process
from odf_cli.embedded.parts.managed_process import (
    RESTART,
    PartProcess,
    PartSpec,
    held_in_foreground,
    is_in_foreground,
)
from odf_cli.embedded.plan import Plan, emptier_of
from odf_cli.embedded.supervisor import Supervisor
from odf_common.service import die_with_parent
from odf_common.service.die_with_parent import with_parent_death_signal
from odf_common.service.settings import child_environment

pytestmark = pytest.mark.waits

SLEEP = "import time; print('up', flush=True); time.sleep(60)"


async def ready() -> bool:
    return True


async def eventually(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not claim():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.01)


def part(
    folder: Path,
    code: str,
    changes: list[tuple[str, int | None]] | None = None,
    temporary: Path | None = None,
) -> PartProcess:
    spec = PartSpec(
        name="part",
        command=(sys.executable, "-c", code),
        environment={
            **child_environment(),
            "ODF_HOME": str(folder),
            "ODF_PART": "part",
            "TMPDIR": str(temporary),
        },
        probe=ready,
        prepare=None if temporary is None else emptier_of(temporary),
    )
    made = PartProcess(
        spec, folder, lambda: (changes if changes is not None else []).append((made.state, made.pid))
    )
    return made


def run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(story())


def test_a_part_becomes_ready_and_is_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        changes: list[tuple[str, int | None]] = []
        kept = part(tmp_path, SLEEP, changes)
        running = asyncio.create_task(kept.run())
        await eventually(lambda: kept.state == "ready")
        pid = kept.pid
        assert pid is not None
        await kept.stop(5)
        await running
        assert not is_running(pid)
        assert [state for state, _ in changes] == ["starting", "ready", "stopped"]

    run(story)


def test_a_killed_part_is_restarted_within_a_second(tmp_path: Path) -> None:
    async def story() -> None:
        changes: list[tuple[str, int | None]] = []
        kept = part(tmp_path, SLEEP, changes)
        running = asyncio.create_task(kept.run())
        await eventually(lambda: kept.state == "ready")
        old = kept.pid
        assert old is not None
        os.kill(old, signal.SIGKILL)
        begun = time.monotonic()
        await eventually(lambda: kept.state == "restarting")
        assert kept.problem == "its process was ended by signal 9 (Killed)"
        await eventually(lambda: kept.state == "ready" and kept.pid not in (None, old))
        assert time.monotonic() - begun < 1
        assert kept.problem is None
        assert ("restarting", None) in changes
        await kept.stop(5)
        await running

    run(story)


def test_child_processes_of_a_part_end_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        child = (
            "import subprocess,time; print(subprocess.Popen(['sleep','60']).pid, flush=True); time.sleep(60)"
        )
        kept = part(tmp_path, child)
        running = asyncio.create_task(kept.run())
        await eventually(lambda: kept.tail().strip().isdigit())
        grandchild = int(kept.tail())
        assert is_running(grandchild)
        await kept.stop(5)
        await running
        await eventually(lambda: not is_running(grandchild))

    run(story)


def test_a_part_that_ignores_sigterm_is_killed_after_its_grace_period(tmp_path: Path) -> None:
    async def story() -> None:
        deaf = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        kept = part(tmp_path, deaf)
        running = asyncio.create_task(kept.run())
        await eventually(lambda: "up" in kept.tail())
        await kept.stop(0.2)
        await running
        assert kept.state == "stopped"

    run(story)


def test_a_part_that_ends_repeatedly_has_failed_and_is_restarted_less_often(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    async def story() -> None:
        spec = PartSpec(
            name="part", command=(sys.executable, "-c", "print('no'); exit(1)"), environment={}, probe=never
        )
        kept = PartProcess(spec, tmp_path, lambda: None)
        running = asyncio.create_task(kept.run())
        await eventually(lambda: kept.has_failed)
        assert kept.tail().split() == ["no"] * 3
        await asyncio.sleep(0.3)
        assert len(kept.tail().split()) == 3
        await kept.stop(1)
        running.cancel()

    run(story)


def test_a_part_dies_with_its_supervisor(tmp_path: Path) -> None:
    supervisor = (
        "import subprocess,sys,time; from odf_common.service.die_with_parent import with_parent_death_signal;"
        "p = subprocess.Popen(with_parent_death_signal(('sleep', '60')), start_new_session=True); print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert is_running(child)
        process.kill()
        process.wait()
    deadline = time.monotonic() + 5
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def test_the_launcher_does_not_outlive_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", die_with_parent.__file__, "1", "echo", "x"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert (
        subprocess.run(with_parent_death_signal(("echo", "x")), capture_output=True, check=True).stdout
        == b"x\n"
    )


def test_leftovers_of_a_home_are_ended_and_those_of_others_are_not(tmp_path: Path) -> None:
    def start(home: Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            ["sleep", "60"], env={**child_environment(), "ODF_HOME": str(home), "ODF_PART": "x"}
        )

    mine, other = start(tmp_path / "a"), start(tmp_path / "b")
    try:
        assert list(leftovers(tmp_path / "a")) == [mine.pid]
        end_leftovers(tmp_path / "a")
        assert mine.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        mine.kill()
        other.kill()
        mine.wait()
        other.wait()


def test_unfinished_writes_of_killed_parts_are_swept(tmp_path: Path) -> None:
    for name in ("scratch/slice", "staging/file", "datasets/one"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["datasets"]


def test_a_part_that_never_stays_up_is_restarted_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = part(tmp_path, "")
    pauses: list[float] = []

    async def ended() -> None:
        return None

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        never._stopping = len(pauses) == 1500

    monkeypatch.setattr(never, "_once", ended)
    monkeypatch.setattr(asyncio, "sleep", pause)
    asyncio.run(never.run())
    assert len(pauses) == 1500
    assert max(pauses) == pauses[-1] == RESTART.most


def test_a_disk_that_is_full_for_a_while_ends_no_running_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    specs = tuple(
        PartSpec(name=name, command=("sleep", "60"), environment=child_environment(), probe=ready)
        for name in ("a", "b")
    )
    supervisor = Supervisor(Plan(node=Node(home=tmp_path, pid=os.getpid()), parts=specs), lambda _: None)

    def full(_: Node) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def story() -> None:
        running = asyncio.create_task(supervisor.run())
        first = supervisor._parts[0]
        await eventually(lambda: all(one.state == "ready" for one in supervisor._parts))
        killed = first.pid
        assert killed is not None
        with monkeypatch.context() as patch:
            patch.setattr(node, "write_node", full)
            os.kill(killed, signal.SIGKILL)
            await eventually(lambda: first.state == "ready" and first.pid != killed)
        # There is space again: the file becomes correct without further events.
        await eventually(lambda: read_node(tmp_path).parts[0].pid == first.pid)
        supervisor.stop()
        await running
        assert [one.state for one in supervisor._parts] == ["stopped", "stopped"]

    run(story)


def test_temporary_files_of_a_killed_part_are_removed_when_it_restarts(tmp_path: Path) -> None:
    async def story() -> None:
        folder = tmp_path / "put" / "aside"
        code = f"import tempfile; tempfile.mkdtemp(); {SLEEP}"
        kept = part(tmp_path, code, temporary=folder)
        keeping = asyncio.create_task(kept.run())
        # A folder: `tempfile` first tries with a file whether it can write there.
        await eventually(lambda: folder.is_dir() and any(one.is_dir() for one in folder.iterdir()))
        (seen,) = (one for one in folder.iterdir() if one.is_dir())
        assert kept.pid is not None
        os.kill(kept.pid, signal.SIGKILL)
        await eventually(lambda: not seen.exists())
        await kept.stop(5)
        await keeping

    run(story)


def test_a_part_that_is_stopped_while_it_starts_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn, processes = PartProcess._spawn, []
    spawning, may_spawn = asyncio.Event(), asyncio.Event()

    async def slow_spawn(self: PartProcess) -> asyncio.subprocess.Process:
        spawning.set()
        await may_spawn.wait()
        processes.append(await spawn(self))
        return processes[-1]

    async def story() -> None:
        kept = part(tmp_path, SLEEP)
        running = asyncio.create_task(kept.run())
        await spawning.wait()
        stopping = asyncio.create_task(kept.stop(60))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        may_spawn.set()
        async with asyncio.timeout(10):
            await stopping
            await running
        assert [process.returncode for process in processes] == [-signal.SIGKILL]
        assert (kept.state, kept.pid) == ("stopped", None)

    monkeypatch.setattr(PartProcess, "_spawn", slow_spawn)
    run(story)


def test_a_part_in_the_foreground_of_a_terminal_is_not_started(tmp_path: Path) -> None:
    async def story() -> None:
        kept = part(tmp_path, SLEEP)
        kept.spec = replace(kept.spec, is_elsewhere=partial(is_in_foreground, tmp_path, "part"))
        with held_in_foreground(tmp_path, "part"):
            running = asyncio.create_task(kept.run())
            await eventually(lambda: kept.state == "foreground")
            assert kept.pid is None
        await eventually(lambda: kept.state == "ready")
        assert kept.pid is not None
        await kept.stop(1)
        await running

    run(story)


def test_one_terminal_at_a_time_runs_a_part(tmp_path: Path) -> None:
    with (
        held_in_foreground(tmp_path, "part"),
        pytest.raises(BlockingIOError),
        held_in_foreground(tmp_path, "part"),
    ):
        pass
    assert not is_in_foreground(tmp_path, "part")


def test_a_part_whose_log_cannot_be_opened_fails_alone_and_starts_once_it_can(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    specs = tuple(
        PartSpec(name=name, command=("sleep", "60"), environment=child_environment(), probe=ready)
        for name in ("a", "b")
    )
    supervisor = Supervisor(Plan(node=Node(home=tmp_path, pid=os.getpid()), parts=specs), lambda _: None)

    async def story() -> None:
        running = asyncio.create_task(supervisor.run())
        first, second = supervisor._parts
        await eventually(lambda: first.state == second.state == "ready")
        other = second.pid
        assert first.pid is not None
        first.log.unlink()
        first.log.mkdir()
        os.kill(first.pid, signal.SIGKILL)
        await eventually(lambda: first.state == "failed")
        assert first.tail() == ""
        shown = read_node(tmp_path).parts[0]
        assert (shown.state, shown.pid) == ("failed", None)
        assert shown.problem == f"{first.log}: Is a directory"
        assert shown.remedy is not None
        assert "can be written" in shown.remedy
        first.log.rmdir()
        await eventually(lambda: first.state == "ready")
        assert read_node(tmp_path).parts[0].problem is None
        assert second.pid == other
        supervisor.stop()
        await running

    run(story)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENOSPC, "No space left on device"), "free some space"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
)
def test_a_part_that_the_system_refuses_to_start_has_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, remedy: str
) -> None:
    async def refused() -> None:
        raise error

    async def story() -> None:
        kept = part(tmp_path, SLEEP)
        with monkeypatch.context() as patch:
            patch.setattr(kept, "_spawn", refused)
            running = asyncio.create_task(kept.run())
            await eventually(lambda: kept.has_failed)
            assert kept.problem is not None
            assert kept.problem in str(error)
            assert kept.remedy is not None
            assert remedy in kept.remedy
        await eventually(lambda: kept.state == "ready")
        await kept.stop(5)
        await running

    run(story)


def test_a_node_whose_part_cannot_be_started_at_first_reports_why(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder of logs should be")
    specs = (PartSpec(name="a", command=("sleep", "60"), environment=child_environment(), probe=ready),)
    supervisor = Supervisor(Plan(node=Node(home=tmp_path, pid=os.getpid()), parts=specs), lambda _: None)
    with pytest.raises(node.StartFailed, match=r"a did not start: .*logs/a\.log: Not a directory") as caught:
        asyncio.run(supervisor.run())
    assert "can be written" in caught.value.advice()


def test_a_part_that_stops_responding_is_unresponsive_until_it_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed_process, "LIVENESS_SECONDS", 0.02)
    monkeypatch.setattr(managed_process, "SILENCE_SECONDS", 0.2)
    is_frozen = False

    async def answers() -> bool:
        return not is_frozen

    async def story() -> None:
        nonlocal is_frozen
        kept = part(tmp_path, SLEEP)
        kept.spec = replace(kept.spec, liveness=answers)
        running = asyncio.create_task(kept.run())
        await eventually(lambda: kept.state == "ready")
        is_frozen = True
        begun = time.monotonic()
        await eventually(lambda: kept.state == "unresponsive")
        assert time.monotonic() - begun > 0.15
        assert kept.pid is not None
        assert is_running(kept.pid)
        assert kept.remedy is not None
        assert f"kill -9 {kept.pid}" in kept.remedy
        is_frozen = False
        await eventually(lambda: kept.state == "ready")
        assert [kept.problem, kept.remedy] == [None, None]
        is_frozen = True
        await eventually(lambda: kept.state == "unresponsive")
        os.kill(kept.pid, signal.SIGKILL)
        await eventually(lambda: kept.state == "ready")
        await kept.stop(5)
        await running

    run(story)
