import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode

from odf_engine_spark.server.standby import processor_time

pytestmark = pytest.mark.soak


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    node = EmbeddedNode(tmp_path / "home", {"ODF_ENGINE_SPARE": "1", "ODF_ENGINE_SPARE_AFTER_MS": "0"})
    node.up()
    yield node
    node.down()


def workers(keeper: int | None) -> list[int]:
    """Return the engines of a keeper, the oldest first."""
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [int(pid) for pid in children if b"--worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_warm(pid: int) -> bool:
    """Return whether an engine has started, and computes nothing."""
    before = processor_time(pid)
    time.sleep(2)
    return 2 < before <= processor_time(pid) < before + 0.2


def test_a_query_is_answered_by_the_standby_after_the_engine_was_killed(node: EmbeddedNode) -> None:
    question = "sql -c 'SELECT 1 + 1 AS n' --output json"
    assert node.run(question) == [{"n": 2}]
    keeper = node.pid("engine-spark")
    node.eventually(lambda: len(workers(keeper)) == 2 and is_warm(workers(keeper)[1]))
    first, standby = workers(keeper)
    os.kill(first, signal.SIGKILL)
    node.eventually(lambda: node.attempt(question).returncode == 0)
    assert node.pid("engine-spark") == keeper, "the supervisor has not started another engine"
    assert workers(keeper)[0] == standby
    node.eventually(lambda: len(workers(keeper)) == 2)


PATIENCE = 60.0  # seconds
ENDLESS = "SELECT count(*) FROM range(100000000000)"


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


def events(node: EmbeddedNode, event: str) -> int:
    """Return how often the engine has logged an event."""
    return (node.home / "logs" / "engine-spark.log").read_text().count(f'"{event}"')


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_query_ends_with_its_command(node: EmbeddedNode, number: signal.Signals) -> None:
    begun, ended, cancelled = (
        events(node, name) for name in ("request begins", "request ends", "request cancelled")
    )
    command = node.start(f'sql "{ENDLESS}"', stderr=subprocess.DEVNULL)
    # The tables of the query are a request too.
    until(lambda: events(node, "request begins") >= begun + 2 and events(node, "request ends") == ended + 1)
    command.send_signal(number)
    command.communicate()
    until(lambda: events(node, "request cancelled") == cancelled + 1)
    until(lambda: events(node, "request ends") == ended + 2)


def test_a_query_without_memory_is_refused_and_the_engine_stays(node: EmbeddedNode) -> None:
    engine = node.pid("engine-spark")
    said = node.fails("""sql "SELECT repeat('x', 2000000000) AS x" """)
    assert "the query needs too much memory" in said
    assert node.run('sql "SELECT 1 AS one" --output json') == [{"one": 1}]
    assert node.pid("engine-spark") == engine


def test_a_query_that_is_too_long_is_refused(node: EmbeddedNode) -> None:
    said = node.fails("sql", stdin=f"SELECT '{'x' * (2 << 20)}' AS x".encode())
    assert "the query has 2,097,166 characters, more than 1,048,576" in said


def test_a_large_result_arrives_whole(node: EmbeddedNode) -> None:
    rows = node.run('sql "SELECT id FROM range(200000)" --output json')
    assert [row["id"] for row in rows] == list(range(200_000))


def test_programs_and_the_engine_start_without_the_secrets_of_the_environment(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    planted = {
        "DATABASE_URL": "postgres://planted@db",
        "ODF_S3_SECRET_KEY": "planted",
        "ODF_S3_ACCESS_KEY": "key",
    }
    node = EmbeddedNode(tmp_path_factory.mktemp("variables"), planted)
    node.up()
    try:
        for name in ("engine-spark", "kafka", "redis"):
            for pid in family(node.pid(name)):
                with suppress(
                    FileNotFoundError, ProcessLookupError
                ):  # a process of the start, which has ended
                    assert b"planted" not in Path(f"/proc/{pid}/environ").read_bytes(), name
        assert b"planted" in Path(f"/proc/{node.pid('coordinator')}/environ").read_bytes()
    finally:
        node.down()


def family(pid: int | None) -> list[int]:
    """Return a process and its descendants."""
    assert pid is not None
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [pid, *(deeper for child in children for deeper in family(child))]
