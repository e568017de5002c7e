"""NEXMark's queries, over blocks in any groupings, give what DuckDB gives over all events at once."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from odf_testing.engine import Block
from odf_testing.engine_changes import standing
from odf_testing.engine_manifests import derive, plain_rows, root_schema, snapshots
from odf_testing.engine_nexmark import nexmark

from odf_engine_spark.operators.changes import APPEND
from odf_engine_spark.transform.execute_transform import Transforms

NEXMARK = Path(__file__).parents[3] / "examples" / "nexmark"
QUERIES = ["q0", "q1", "q2", "q3", "q5", "q7", "q8", "q11", "q17", "q18", "q19"]
GROUPINGS = (1, pytest.param(4, marks=pytest.mark.soak))
CHANGING = {"q17", "q18", "q19"}
KNOWN = snapshots(NEXMARK)
Rows = list[tuple[object, ...]]


def at_once(query: str, rows: Mapping[str, Sequence[tuple[object, ...]]]) -> Counter[tuple[object, ...]]:
    """Return DuckDB's answer; timestamps are in milliseconds."""
    with duckdb.connect() as connection:
        for name, each in rows.items():
            fields = list(root_schema(KNOWN[name]))[3:]
            columns = list(zip(*(row[1:] for row in each), strict=True))
            types = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in fields]
            arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
            table = pa.table(arrays, names=[field.name for field in fields])
            connection.register(name, table.append_column("arrival", pa.array(range(len(table)))))
        answer = connection.execute((NEXMARK / "duckdb" / f"{query}.sql").read_text())
        return Counter(answer.fetchall())


def all_rows(blocks: Mapping[str, Sequence[Block]]) -> dict[str, Rows]:
    return {name: [row for block in each for row in block.rows] for name, each in blocks.items()}


def groupings(source: random.Random, inputs: int, blocks: int, steps: int) -> list[tuple[int, ...]]:
    """Return up to which block each input is read, step by step; in the end all are."""
    cuts = [sorted(source.choices(range(blocks), k=steps)) for _ in range(inputs)]
    return [*zip(*cuts, strict=True), (blocks,) * inputs]


@pytest.mark.parametrize("groups", GROUPINGS)
@pytest.mark.parametrize("query", QUERIES)
def test_any_batching_of_blocks_gives_the_result_of_duckdb(
    query: str, groups: int, transforms: Transforms, tmp_path: Path
) -> None:
    stream = nexmark(3000, seed=5, blocks=12)
    expected = at_once(query, all_rows(stream.blocks))
    assert len(expected) > 3
    source = random.Random(query)
    ends = set()
    for run in range(groups):
        derivative = derive(transforms, KNOWN, f"nexmark.{query}", stream.blocks, tmp_path / str(run))
        for until in groupings(source, len(derivative.chains), 13, 5):
            derivative.pull(*until)
        rows = plain_rows(pa.concat_tables(derivative.tables))
        assert standing(rows) == expected
        assert query in CHANGING or {row[0] for row in rows} == {APPEND}
        ends.add((derivative.watermark, len(rows)))
    assert len(ends) == 1


@pytest.mark.parametrize("query", ["q5", "q7", "q11"])
def test_late_bids_are_ignored(query: str, transforms: Transforms, tmp_path: Path) -> None:
    stream = nexmark(3000, seed=6, blocks=12, late=4)
    assert len(stream.late) == 4
    rows = all_rows(stream.blocks)
    in_time = {**rows, "bids": [row for row in rows["bids"] if row not in stream.late]}
    derivative = derive(transforms, KNOWN, f"nexmark.{query}", stream.blocks, tmp_path)
    for until in groupings(random.Random(1), len(derivative.chains), 13, 3):
        derivative.pull(*until)
    found = standing(plain_rows(pa.concat_tables(derivative.tables)))
    assert found == at_once(query, in_time)
    assert found != at_once(query, rows)


def test_the_stream_is_a_function_of_its_seed() -> None:
    assert nexmark(200, seed=1, blocks=3) == nexmark(200, seed=1, blocks=3)
    assert nexmark(200, seed=1, blocks=3) != nexmark(200, seed=2, blocks=3)


def test_watermarks_are_not_ahead_of_later_events() -> None:
    for blocks in nexmark(2000, seed=3, blocks=20).blocks.values():
        watermark = 0
        for block in blocks:
            assert all(int(str(row[1])) >= watermark for row in block.rows)
            watermark = block.watermark or watermark
