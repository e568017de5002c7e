"""The demo on real data: messages on a Kafka topic become datasets, derived datasets, and verified ones.

Every number printed is compared with what pandas computes from the same files; exit status 1 means that one differs.
`DEMO_DAYS` (30) is the number of days of 2013 that are published, one round per day.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from confluent_kafka import Producer
from nycflights import expected
from nycflights.node import DemoNode
from odf_testing import nycflights as data
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

MANIFESTS = Path(__file__).parent / "nycflights"
ROOTS = {"flights": data.flights, "weather": data.weather}
NEXT = """
[bold]Next[/]: the demo's node is removed; start your own, whose data is stored in ./.odf

  . .venv/bin/activate
  odf up --detach
  odf add examples/nycflights      # the demo's datasets; or examples/trading, …
  odf status                       # state of the node and its datasets
  odf ingest flights FILE.ndjson   # then: odf pull --all, odf tail flights.late
  odf --help                       # docs/guide/getting-started.md has more
"""
OUT = Console()
ERR = Console(stderr=True)


def main() -> int:
    """Run the demo in a temporary node, and remove the node afterwards."""
    wanted = data.days(int(os.environ.get("DEMO_DAYS", "30")))
    home = Path(tempfile.mkdtemp(prefix="odf-demo-"))
    node = DemoNode(home)
    checks = expected.Checks()
    try:
        started = time.monotonic()
        node.show("up", "--detach")
        OUT.print(f"[bold]node ready[/] after {time.monotonic() - started:.1f} s, home {home.name}")
        story(node, wanted, checks)
    finally:
        node.run("down", check=False)
        shutil.rmtree(home, ignore_errors=True)
    OUT.print(checks.summary())
    if not checks.all_right:
        return 1
    OUT.print(NEXT, highlight=False)
    return 0


def story(node: DemoNode, wanted: list[int], checks: "expected.Checks") -> None:
    """Add, publish, derive, close, show, verify, damage."""
    clock = Laps()
    node.run("add", str(MANIFESTS))
    clock.lap("4 datasets added")
    topics = node.push_topics()
    messages = publish(node, topics, wanted)
    clock.lap(f"{messages:,} messages published in {len(wanted)} rounds, ingested and derived")
    closing = expected.closing_watermark(wanted)
    node.run("pull", "flights", "weather", "--set-watermark", closing)
    node.run("pull", "--all", "--recursive")
    clock.lap(f"roots closed at {closing}, everything derived")
    compare(node, wanted, checks)
    clock.lap("every derived record compared with pandas")
    show(node)
    verdicts(node, checks)
    clock.lap("integrity checked and every transform replayed")
    damage(node, checks)
    clock.lap("a flipped byte found")
    OUT.print(clock.table())


def publish(node: DemoNode, topics: dict[str, str], wanted: list[int]) -> int:
    """Publish one round per day with a plain Kafka producer, one message per record; return their number."""
    producer = Producer({"bootstrap.servers": node.status()["kafka"], "linger.ms": 5})
    total = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERR, transient=True) as progress:
        rounds = progress.add_task("publishing days", total=len(wanted))
        for day in wanted:
            for name, table in ROOTS.items():
                for message in data.as_messages(data.of_days(table(), [day])):
                    producer.produce(topics[name], message)
                    producer.poll(0)
                    total += 1
            producer.flush()
            node.run("pull", *ROOTS)
            progress.advance(rounds)
    with ERR.status("deriving"):
        node.run("pull", "--all", "--recursive")
    return total


def compare(node: DemoNode, wanted: list[int], checks: "expected.Checks") -> None:
    """Compare the roots' counts and every record of the derivatives with pandas over the same files."""
    flights = data.of_days(data.flights(), wanted)
    weather = data.of_days(data.weather(), wanted)
    counts = {entry["alias"]: entry["records"] for entry in node.json("list")}
    late, hourly = expected.late(flights), expected.hourly(flights, weather)
    checks.equal("departures in flights", counts["flights"], len(flights))
    checks.equal("readings in weather", counts["weather"], len(weather))
    checks.equal("departures an hour late or more", counts["flights.late"], len(late))
    checks.equal("hours at an airport", counts["flights.delays.hourly"], len(hourly))
    derived_late = pd.DataFrame(node.tail("flights.late"))
    derived_hourly = pd.DataFrame(node.tail("flights.delays.hourly"))
    checks.equal(
        "hours without a reading", int(derived_hourly["temp"].isna().sum()), int(hourly["temp"].isna().sum())
    )
    checks.same_records("every record of flights.late", derived_late, late)
    checks.same_records("every record of flights.delays.hourly", derived_hourly, hourly)
    worst = node.json(
        "sql",
        "-c",
        "SELECT carrier, count(*) AS n FROM `flights.late` GROUP BY carrier ORDER BY n DESC, carrier LIMIT 1",
    )
    checks.equal("carrier with most late departures", worst[0], expected.worst_carrier(late))
    OUT.print(checks.table())


def show(node: DemoNode) -> None:
    """Print some of the result and the newest blocks of each chain, as users see them."""
    OUT.rule("flights.delays.hourly, last records")
    node.show("tail", "flights.delays.hourly", "-n", "5")
    for name in ("flights", "weather", "flights.late", "flights.delays.hourly"):
        OUT.rule(f"chain of {name}, newest blocks")
        node.show("log", name, "--limit", "4")


def verdicts(node: DemoNode, checks: "expected.Checks") -> None:
    """Verify everything: hashes, chain rules, and every transform by replay."""
    OUT.rule("odf verify --all")
    table = Table("dataset", "verdict", "blocks", "bytes", "transforms replayed")
    for verdict in node.json("verify", "--all"):
        checks.equal(f"verdict on {verdict['dataset']}", verdict["verdict"], "valid")
        table.add_row(*(str(verdict[key]) for key in ("dataset", "verdict", "blocks", "bytes", "transforms")))
    OUT.print(table)


def damage(node: DemoNode, checks: "expected.Checks") -> None:
    """Flip one byte of a slice in a copy of a dataset; verification has to name dataset, block and damage."""
    copy, slice_name = node.damaged_copy("flights.late")
    OUT.rule("one byte flipped in a copy of flights.late")
    report = node.json("verify", copy.as_uri(), code=3)
    node.show("verify", copy.as_uri(), code=3)
    problem = report[0]["problems"][0]
    checks.equal("damaged object named", problem["object"], slice_name)
    checks.equal("its block named", problem["block"], node.block_of("flights.late", slice_name))
    checks.equal("kind of damage", problem["kind"], "physical-hash-mismatch")


class Laps:
    """The duration of each part, in seconds."""

    def __init__(self) -> None:
        """Start the clock."""
        self.last = time.monotonic()
        self.laps: list[tuple[str, float]] = []

    def lap(self, what: str) -> None:
        """Record that `what` has just ended."""
        now = time.monotonic()
        self.laps.append((what, now - self.last))
        self.last = now

    def table(self) -> Table:
        """Return all durations and their sum."""
        table = Table("what", "seconds", title="times", title_justify="left")
        for what, seconds in self.laps:
            table.add_row(what, f"{seconds:.1f}")
        table.add_row("total", f"{sum(s for _, s in self.laps):.1f}")
        return table


if __name__ == "__main__":
    sys.exit(main())
