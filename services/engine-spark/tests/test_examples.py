"""The examples' manifests, run by the engine over blocks in any groupings, against DuckDB over everything at once."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from pathlib import Path

import duckdb
import pyarrow as pa
from odf_testing.engine import HOUR, Block, Derivative
from odf_testing.engine_changes import standing
from odf_testing.engine_manifests import derive, plain_rows, root_schema, snapshots, transform_of
from vega_datasets import data

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.metadata.events import DatasetKind, DatasetVocabulary, TransformSql
from odf_engine_spark.operators.changes import APPEND, FROM, RETRACT, TO
from odf_engine_spark.transform.execute_transform import Transforms

EXAMPLES = Path(__file__).parents[3] / "examples"
DAY = 24 * HOUR
Rows = list[tuple[object, ...]]


def at_once(folder: str, query: str, rows: Mapping[str, Rows]) -> Rows:
    """Return DuckDB's answer over roots' rows of (op, event time in ms, *data); timestamps are in milliseconds."""
    known = snapshots(EXAMPLES / folder)
    with duckdb.connect() as connection:
        for name, each in rows.items():
            fields = list(root_schema(known[name]))[3:]
            types = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in fields]
            columns = zip(*(row[1:] for row in each), strict=True)
            arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
            connection.register(
                name.replace(".", "_"), pa.table(arrays, names=[field.name for field in fields])
            )
        return connection.execute(query).fetchall()


def cut(rows: Rows, edges: Sequence[int], watermarks: Sequence[int]) -> list[Block]:
    """Return blocks of rows by event time: those up to each edge, with the watermark after them."""
    blocks, start = [], -1
    for edge, watermark in zip(edges, watermarks, strict=True):
        held = [row for row in rows if start < int(str(row[1])) <= edge]
        blocks.append(Block(rows=held, watermark=watermark))
        start = edge
    return blocks


def pulled(derivative: Derivative, source: random.Random) -> Rows:
    """Return all records, computed in several steps."""
    ends = [len(chain.blocks) for chain in derivative.chains]
    cuts = [sorted(source.choices(range(end), k=3)) for end in ends]
    for until in [*zip(*cuts, strict=True), ends]:
        derivative.pull(*until)
    return plain_rows(pa.concat_tables(derivative.tables))


def lines(file: Path, schema: pa.Schema) -> Rows:
    """Return a file of JSON lines as rows of (op, event time in ms, *data)."""
    rows: Rows = []
    for line in file.read_text().splitlines():
        read = json.loads(line)
        time, *others = (read[name] for name in schema.names[3:])
        rows.append((0, int(datetime.fromisoformat(time).timestamp() * 1000), *others))
    return rows


def test_the_engine_reports_which_tables_each_example_reads(engine: EngineClient) -> None:
    for folder in ("leaderboard", "nexmark", "nycflights", "shipments", "trading"):
        for each in snapshots(EXAMPLES / folder).values():
            if each.kind is DatasetKind.Derivative:
                made = transform_of(each)
                assert isinstance(made.transform, TransformSql)
                validated = engine.validate(made.transform, {}, {}, DatasetVocabulary())
                assert sorted(validated.tables) == sorted(
                    given.alias or given.dataset_ref for given in made.inputs
                )


BEST = """
    SELECT match_time, row_number() OVER (ORDER BY score DESC, match_time, match_id) AS place, player_name, score
    FROM match_scores QUALIFY place <= 2
"""


def test_the_leaderboard_matches_the_description_of_changelog_streams(
    transforms: Transforms, tmp_path: Path
) -> None:
    folder = EXAMPLES / "leaderboard"
    known = snapshots(folder)
    rows = lines(folder / "match.scores.ndjson", root_schema(known["match.scores"]))
    blocks = {"match.scores": [Block(rows=[row]) for row in rows]}
    board = derive(transforms, known, "leaderboard", blocks, tmp_path)
    found = pulled(board, random.Random(2))
    assert [(row[0], *row[2:]) for row in found] == [
        (APPEND, 1, "Alice", 100),
        (APPEND, 2, "Bob", 80),
        (FROM, 2, "Bob", 80),
        (TO, 2, "Charlie", 90),
        (FROM, 1, "Alice", 100),
        (TO, 1, "Charlie", 110),
        (FROM, 2, "Charlie", 90),
        (TO, 2, "Alice", 100),
    ]
    assert standing(found) == Counter(at_once("leaderboard", BEST, {"match.scores": rows}))


def test_the_leaderboard_follows_retracted_scores(transforms: Transforms, tmp_path: Path) -> None:
    source, known = random.Random(8), snapshots(EXAMPLES / "leaderboard")
    there: Rows = []
    blocks = []
    for match in range(40):
        new = (0, HOUR * match, match, source.choice(["Alice", "Bob", "Charlie"]), source.randrange(200))
        rows: Rows = [new]
        there.append(new)
        if match % 3 == 2:
            gone = there.pop(source.randrange(len(there)))
            rows.append((RETRACT, *gone[1:]))
        blocks.append(Block(rows=rows))
    board = derive(transforms, known, "leaderboard", {"match.scores": blocks}, tmp_path)
    found = pulled(board, source)
    assert standing(found) == Counter(at_once("leaderboard", BEST, {"match.scores": there}))
    assert {row[0] for row in found} >= {APPEND, FROM, TO}


POSITIONS = """
    WITH held AS (
      SELECT *, sum(quantity) OVER (PARTITION BY symbol ORDER BY event_time) AS position FROM trades
    )
    SELECT t.event_time, t.id, t.symbol, t.quantity, t.position, p.price, t.position * p.price AS worth
    FROM held t ASOF JOIN prices p ON t.symbol = p.symbol AND t.event_time >= p.event_time
"""


def test_positions_are_valued_at_the_current_price(transforms: Transforms, tmp_path: Path) -> None:
    source, stocks = random.Random(3), data.stocks()
    times = [int(date.timestamp() * 1000) for date in stocks["date"]]
    prices: Rows = sorted(
        (
            (0, time, symbol, price)
            for time, symbol, price in zip(times, stocks["symbol"], stocks["price"], strict=True)
        ),
        key=itemgetter(1),
    )
    first, last = min(times), max(times)
    symbols = sorted(set(stocks["symbol"]))
    trades: Rows = [
        (
            0,
            source.randrange(first // HOUR, last // HOUR) * HOUR,
            number,
            source.choice(symbols),
            source.randrange(-50, 100),
        )
        for number in range(600)
    ]
    trades += [(*trades[0][:2], 600, *trades[0][3:]), (0, first - HOUR, 601, "IBM", 7)]
    edges = [*sorted(source.sample(range(first, last), 8)), last]
    monthly = [*edges[1::2], last]
    blocks = {
        "trades": [*cut(trades, edges, [edge - 20 * DAY for edge in edges]), Block(watermark=last + DAY)],
        "prices": [*cut(prices, monthly, monthly), Block(watermark=last + DAY)],
    }
    positions = derive(transforms, snapshots(EXAMPLES / "trading"), "positions", blocks, tmp_path)
    found = pulled(positions, source)
    expected = at_once("trading", POSITIONS, {"trades": trades, "prices": prices})
    assert len(expected) > 500
    assert Counter(found) == Counter((APPEND, *row) for row in expected)


DAILY = """
    SELECT o.event_time // 86400000 * 86400000 AS day, count(*), count(s.order_id), sum(amount)
    FROM orders o LEFT JOIN shipments s
      ON s.order_id = o.id AND s.event_time BETWEEN o.event_time AND o.event_time + 3 * 86400000
    GROUP BY day
"""


def test_orders_are_counted_with_those_shipped_within_three_days(
    transforms: Transforms, tmp_path: Path
) -> None:
    source = random.Random(4)
    orders: Rows = [
        (
            0,
            source.randrange(20 * DAY),
            number,
            source.choice("abc"),
            Decimal(source.randrange(100_000)).scaleb(-2),
        )
        for number in range(400)
    ]
    shipments: Rows = [
        (
            0,
            int(str(order[1])) + source.choice([0, HOUR, DAY, 3 * DAY, 3 * DAY + 1, 9 * DAY]),
            order[2],
            "post",
        )
        for order in orders
        if source.random() < 0.8
    ]
    edges = [*(day * DAY for day in range(3, 31, 3))]
    late = [edge - source.randrange(DAY) for edge in edges]
    blocks = {
        "orders": [*cut(orders, edges, late), Block(watermark=40 * DAY)],
        "shipments": [*cut(shipments, edges, edges), Block(watermark=40 * DAY)],
    }
    daily = derive(transforms, snapshots(EXAMPLES / "shipments"), "orders.daily", blocks, tmp_path)
    found = pulled(daily, source)
    expected = at_once("shipments", DAILY, {"orders": orders, "shipments": shipments})
    assert len(expected) == 20
    assert Counter(found) == Counter((APPEND, *row) for row in expected)
