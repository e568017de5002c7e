"""A call of a service fails as ordered, once, whatever library makes it; those elsewhere do not."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from odf_testing.failing_calls import FailingCalls

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
