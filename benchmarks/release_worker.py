"""One release's measurements, on request: `compare_releases` starts this with the Python of each checkout.

The modules are those of the checkout that the argument names: its node, its benchmarks. A request is a line with a
case's name; the answer is a line of JSON with the seconds of each measurement, or the error. The node and the engine
are started by the first case that needs them, and end with standard input.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from pathlib import Path
from statistics import median

sys.path[0] = str(Path(sys.argv[1]) / "benchmarks")

import chained  # noqa: E402 - of the checkout, like all that follow
import ingest_file  # noqa: E402
import ingest_topic  # noqa: E402
import small_commits  # noqa: E402
import transactions  # noqa: E402
from departures import APPEND, messages, write_file  # noqa: E402
from node_under_test import BenchedNode, running_node  # noqa: E402

try:
    from odf_cli import clients
except ImportError:  # an older release
    from odf_common.cli import clients  # type: ignore[no-redef, import-not-found]

COMMITS = 100
TRANSACTIONS = 50


class Release:
    """A node and an engine of one checkout, each started once."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Start nothing yet."""
        self._folder = folder
        self._stack = stack
        self._numbers = count()

    @cached_property
    def node(self) -> BenchedNode:
        """Return the running node."""
        return self._stack.enter_context(running_node(self._folder / "home"))

    @cached_property
    def pairs(self) -> dict[str, chained.Pair]:
        """Return a root and a derivative for each kind of query, in an engine of their own."""
        _, client = self._stack.enter_context(transactions.engine())
        coordinator = chained.Coordinator(self._folder / "chained", client)
        return {kind: chained.add(coordinator, kind, query) for kind, query in transactions.QUERIES.items()}

    def ingest_topic(self) -> dict[str, float]:
        """Create a dataset whose topic is full; the seconds until all messages are committed."""
        name = f"topic.{next(self._numbers)}"
        topic = self.node.topic_of(name)
        self.node.embedded.topics().create_push_topic(topic)
        self.node.embedded.produce(topic, messages())
        return {"ingest_topic": ingest_topic._caught_up(self.node, name, APPEND).seconds}  # noqa: SLF001

    def ingest_file(self) -> dict[str, float]:
        """Ingest one NdJson file of all departures."""
        file = self._folder / "flights.ndjson"
        if not file.exists():
            write_file(file)
        return {"ingest_file": ingest_file._ingest(self.node, f"file.{next(self._numbers)}", file)}  # noqa: SLF001

    def small_commits(self) -> dict[str, float]:
        """Commit single records; the median of their seconds."""
        name = f"commits.{next(self._numbers)}"
        self.node.add(name, APPEND)
        self.node.settle()
        with clients.ingest(self.node.node) as ingest:
            times = [small_commits._push(ingest, name, record) for record in messages()[:COMMITS]]  # noqa: SLF001
        return {"small_commits": median(times)}

    def transactions(self) -> dict[str, float]:
        """Transform transactions; the median of their seconds for each kind of query."""
        medians = {}
        for kind, pair in self.pairs.items():
            times = []
            for _ in range(TRANSACTIONS):
                pair.push()
                times.append(pair.transform()[0])
            medians[f"transactions, {kind}"] = median(times)
        return medians


def main() -> None:
    """Answer requests until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a benchmark prints is no answer
    with tempfile.TemporaryDirectory(prefix="odf-release-") as folder, ExitStack() as stack:
        release = Release(Path(folder), stack)
        cases: Mapping[str, Callable[[], dict[str, float]]] = {
            "ingest_topic": release.ingest_topic,
            "ingest_file": release.ingest_file,
            "small_commits": release.small_commits,
            "transactions": release.transactions,
        }
        for line in sys.stdin:
            try:
                answer: dict[str, object] = {"seconds": cases[line.strip()]()}
            except Exception:  # noqa: BLE001 - the driver shows it and ends
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
