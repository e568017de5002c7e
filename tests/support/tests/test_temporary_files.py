import fcntl
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from odf_testing import temporary_files
from odf_testing.failing_calls import FailingCalls
from odf_testing.profiles import examples, is_repeatable
from odf_testing.scheduling import ENGINE, INTEGRATION, chosen, mostly_waits, needs_shared_node
from odf_testing.temporary_files import has_room, pytest_cmdline_main, remove_abandoned


def test_a_file_system_has_room_if_it_has_bytes_for_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_files, "_ROOM", 0)
    assert has_room(tmp_path)
    assert not has_room(tmp_path / "missing")
    monkeypatch.setattr(temporary_files, "_ROOM", 2**63)
    assert not has_room(tmp_path)


def test_a_folder_that_the_environment_names_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    pytest_cmdline_main()
    assert os.environ["TMPDIR"] == "/var/tmp"


def test_folders_of_runs_that_were_killed_are_removed(tmp_path: Path) -> None:
    abandoned, running, other = (tmp_path / name for name in ("odf-tests-a", "odf-tests-b", "other"))
    for folder in (abandoned, running, other):
        (folder / "kafka").mkdir(parents=True)
    held = os.open(running, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    remove_abandoned(tmp_path)
    os.close(held)
    assert sorted(tmp_path.iterdir()) == [running, other]


def tried() -> list[int]:
    """Return which integers a test of this file is given."""
    found: list[int] = []

    @given(st.integers())
    def test(value: int) -> None:
        found.append(value)

    test()
    return found


def test_the_same_examples_are_tried_whatever_was_imported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tried()
    (tmp_path / "constants.py").write_text(f"VALUES = {list(range(10**6, 10**6 + 1000))}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("constants")
    assert (tried() == before) is is_repeatable()


def test_the_profile_applies_to_a_test_with_its_own_settings() -> None:
    class Machine(RuleBasedStateMachine):
        pass

    for own in (settings(max_examples=3), settings(suppress_health_check=[]), Machine.TestCase.settings):
        assert own.derandomize is is_repeatable()
        assert (own.deadline, own.database, own.print_blob) == (None, None, True)
    assert examples(15) == (7 if is_repeatable() else 300)


SHARED = f"{INTEGRATION}test_batches_do_not_matter.py"
OWN = f"{INTEGRATION}test_service_loop.py"
SPARK = f"{ENGINE}tests/test_kinds.py"
UNIT = "libs/odf_common/tests/chain/test_rules.py"
WAITING = "libs/odf_common/tests/adapters/test_kafka_records.py"
ALL = (OWN, SHARED, SPARK, UNIT)


def test_stories_with_a_separate_node_do_not_need_the_shared_one() -> None:
    assert needs_shared_node(SHARED)
    assert not needs_shared_node(OWN)


def test_two_processes_take_the_shared_node_and_the_last_takes_the_session() -> None:
    assert [chosen(ALL, process, 4) for process in range(4)] == [SHARED, SHARED, OWN, SPARK]


def test_a_process_without_files_of_its_kind_takes_any_others() -> None:
    assert chosen((SHARED, SPARK, OWN, UNIT), 2, 4) == OWN
    assert chosen((SHARED, UNIT), 3, 4) == UNIT


def test_files_that_mostly_wait_are_started_before_the_rest() -> None:
    assert mostly_waits(WAITING)
    assert not mostly_waits(UNIT)
    assert chosen((OWN, UNIT, WAITING), 2, 4) == WAITING
    assert chosen((SHARED, UNIT, WAITING), 0, 4) == SHARED


def test_nothing_waits_for_a_process_that_is_busy() -> None:
    assert chosen((SHARED, SPARK), 2, 4) == SPARK
    assert chosen((SHARED,), 3, 4) == SHARED


def test_one_process_takes_everything() -> None:
    waiting, taken = list(ALL), []
    while waiting:
        taken.append(chosen(waiting, 0, 1))
        waiting.remove(taken[-1])
    assert taken == [SHARED, SPARK, OWN, UNIT]


SERVICE: Final = """
import os, sys, time
import pyarrow as pa, pyarrow.parquet as pq
home = os.environ["ODF_HOME"]
print("ready", flush=True)
sys.stdin.readline()
for work in (
    lambda: os.mkdir(f"{home}/folder"),
    lambda: open(f"{home}/file", "w").close(),
    lambda: pq.write_table(pa.table({"a": [1]}), f"{home}/slice"),
    lambda: open(f"{home}/file").read(),
    lambda: open(f"{home}-elsewhere", "w").close(),
):
    try:
        work()
        print("done")
    except OSError as error:
        print(error.strerror or error)
"""


@pytest.mark.parametrize(
    ("error", "after", "failed", "said"),
    [
        ("ENOSPC", 0, "mkdir folder", {0: "No space left on device"}),
        ("ENOSPC", 2, "openat slice", {2: "No space left on device"}),
        ("EMFILE", 0, "openat file", {1: "Too many open files"}),
        ("EIO", 9999, None, {}),
    ],
)
def test_one_call_fails(
    tmp_path: Path, error: str, after: int, failed: str | None, said: dict[int, str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "file").touch()
    calls = FailingCalls(home)
    (tmp_path / "odf_verifier.py").write_text(SERVICE)
    environment = {**os.environ, "ODF_HOME": str(home), **calls.environment()}
    with subprocess.Popen(
        [sys.executable, "-m", "odf_verifier"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        calls.order("verifier", error, after)
        lines = process.communicate("\n", timeout=60)[0].splitlines()
    ended = calls.end("verifier")
    assert ended.failed == failed
    assert not any("elsewhere" in one for one in ended.made)
    for index, line in enumerate(lines):
        assert said.get(index, "done") in line
    assert len(lines) == 5
