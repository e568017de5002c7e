"""Which value of a query's result becomes which value of a dataset: exactly, or the request ends with an error."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import FLIGHTS, VOCAB, Block, Chain, Derivative, Make, flight, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.data.ddl import schema_to_ddl
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.ports.engine import QueryFailed
from odf_engine_spark.transform.execute_transform import Transforms
from odf_engine_spark.values.spark_types import RESULT_TYPES

DAY: Final = 86_400_000
BEFORE_1970: Final = -14_819 * DAY  # a day of 1929, in ms
EDGES: Final = "CASE flight WHEN 1 THEN {} WHEN 2 THEN {} END"
EXACT: Final[Sequence[tuple[str, str, object, str, object]]] = [
    ("BOOLEAN", "true", True, "false", False),
    ("TINYINT", "-128Y", -128, "127Y", 127),
    ("SMALLINT", "-32768S", -32768, "32767S", 32767),
    ("INT", "-2147483648", -(2**31), "2147483647", 2**31 - 1),
    ("BIGINT", "-9223372036854775808L", -(2**63), "9223372036854775807L", 2**63 - 1),
    ("FLOAT", "CAST(0.1 AS FLOAT)", "0.1", "CAST('-Infinity' AS FLOAT)", "-inf"),
    ("DOUBLE", "5e-324D", "5e-324", "-0.0D", "-0"),
    ("DECIMAL(10, 2)", "99999999.99BD", "99999999.99", "CAST(-0.01 AS DECIMAL(10,2))", "-0.01"),
    ("DECIMAL(38, 18)", "CAST(1e-18 AS DECIMAL(38,18))", "1E-18", "CAST(1 AS DECIMAL(38,18))", "1." + "0" * 18),
    ("STRING", "'Tromsø\\0'", "Tromsø\0", "''", ""),
    ("STRING", "CAST('ab' AS CHAR(3))", "ab", "CAST('cd' AS VARCHAR(3))", "cd"),
    ("BINARY", "X'00FF'", b"\x00\xff", "X''", b""),
    ("DATE", "DATE '0001-01-01'", "0001-01-01", "DATE '9999-12-31'", "9999-12-31"),
    ("TIMESTAMP(6)", "TIMESTAMP '1969-12-31T23:59:59.999999Z'", -1, "timestamp_micros(-62135596800000000)", -62135596800000000),
    ("TIMESTAMP(6)", "TIMESTAMP_NTZ '1969-12-31T23:59:59.999999'", -1, "TIMESTAMP_NTZ '9999-12-31T23:59:59.999999'", 253402300799999999),
]  # fmt: skip
UNSTORED: Final = [
    ("TIME '12:34:56.789'", "x: TIME cannot be returned: CAST it to STRING"),
    ("INTERVAL '1' YEAR", "x: INTERVAL YEAR TO MONTH cannot be returned: .* to STRING, or compute timestampdiff"),
    ("make_interval(1)", "x: INTERVAL cannot be returned: .* to STRING"),
    ("INTERVAL '36' HOUR", "x: INTERVAL DAY TO SECOND cannot be returned: .* or compute timestampdiff"),
    ("map('a', 1)", "x: MAP cannot be returned: use map_keys.* or to_json"),
    ("map_entries(map('a', 1))", r"x: ARRAY<STRUCT> cannot be returned: .*transform.* or to_json"),
    ("named_struct('l', array(array(named_struct('a', 1))))", r"x\.l\[\]: ARRAY<STRUCT> cannot be returned"),
    ("NULL", "x: VOID cannot be returned: it is always null, CAST it to the intended type"),
    ("named_struct()", "x: STRUCT<> cannot be returned: it has no fields"),
    ("array(NULL)", r"x\[\]: VOID cannot be returned"),
    ("array(map('a', 1))", r"x\[\]: MAP cannot be returned"),
    ("named_struct('t', TIME '12:34:56')", r"x\.t: TIME cannot be returned"),
    ("named_struct('d', array(INTERVAL '36' HOUR))", r"x\.d\[\]: INTERVAL DAY TO SECOND cannot be returned"),
    ("named_struct('y', INTERVAL '1' YEAR)", r"x\.y: INTERVAL YEAR TO MONTH cannot be returned"),
]  # fmt: skip


def texts(column: pa.ChunkedArray) -> list[object]:
    """Return values as Python has them, times as numbers, and what Python lacks as text."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())
    elif pa.types.is_floating(type_) or pa.types.is_date(type_) or pa.types.is_decimal(type_):
        column = column.cast(pa.string())
    return [*column.to_pylist()]


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("timestampadd(MICROSECOND, 999, time_hour)", BEFORE_1970),
        ("timestampadd(MICROSECOND, -1, time_hour)", BEFORE_1970 - 1),
        ("timestamp_micros(-1)", -1),
        ("timestamp_micros(-1000)", -1),
        ("timestamp_micros(-1001)", -2),
        ("timestamp_micros(999)", 0),
        ("TIMESTAMP '1969-12-31T23:59:59.9999Z'", -1),
    ],
)
def test_an_event_time_finer_than_milliseconds_is_cut_towards_the_past(
    derive: Make, time: str, expected: int
) -> None:
    out = derive(
        sql(f"SELECT {time} AS event_time FROM flights"), flights=[Block(rows=[flight(BEFORE_1970)])]
    )
    out.pull()
    assert [row[1] for row in out.rows()] == [expected]


def test_nanoseconds_of_an_input_are_cut_to_microseconds_towards_the_past(
    transforms: Transforms, tmp_path: Path
) -> None:
    fine = pa.struct([("t", pa.list_(pa.timestamp("ns", "UTC")))])
    schema = pa.schema([*list(FLIGHTS)[:4], pa.field("s", fine), pa.field("at", pa.timestamp("ns", "UTC"))])
    chain = Chain(name="w", schema=schema, vocab=VOCAB, folder=tmp_path)
    chain.blocks.append((0, tmp_path / "slice", 0, 0, None))
    moment = pa.array([5], pa.timestamp("ms", "UTC"))
    nested = pa.array([{"t": [-1, 1_999, -1_000]}], fine)
    row = [pa.array([0], pa.uint64()), pa.array([0], pa.uint8()), moment, moment, nested]
    table = pa.Table.from_arrays([*row, pa.array([-1_001], pa.timestamp("ns", "UTC"))], schema=schema)
    pq.write_table(table, tmp_path / "slice", store_schema=False)
    query = sql("SELECT time_hour AS event_time, unix_micros(at), transform(s.t, x -> unix_micros(x)) FROM w")
    out = Derivative(transforms=transforms, transform=query, chains=[chain], folder=tmp_path)
    out.pull()
    assert out.rows() == [(0, 5, -2, [-1, 1, -1])]


def test_values_of_every_type_arrive_exactly_alone_and_nested(derive: Make) -> None:
    columns = [
        f"{value} AS c{n}, array({value}) AS l{n}, named_struct('v', {value}) AS s{n}"
        for n, value in enumerate(EDGES.format(least, most) for _, least, _, most, _ in EXACT)
    ]
    rows = [flight(DAY, number=1), flight(2 * DAY, number=2), flight(3 * DAY, number=3)]
    out = derive(
        sql(f"SELECT time_hour AS event_time, {', '.join(columns)} FROM flights"), flights=[Block(rows=rows)]
    )
    out.pull()
    (table,) = out.tables
    stored = schema_of_event(schema_to_event(table.schema))
    for n, (type_, _, least, _, most) in enumerate(EXACT):
        assert schema_to_ddl(pa.schema([stored.field(f"c{n}")])) == (f"c{n} {type_}",)
        nested = table.column(f"l{n}").combine_chunks().flatten()
        inner = table.column(f"s{n}").combine_chunks().field("v")
        for column in (table.column(f"c{n}"), nested, inner):
            assert texts(column) == [least, most, None], type_


@pytest.mark.parametrize(("value", "why"), UNSTORED)
def test_a_type_that_no_column_has_is_refused_with_column_and_remedy(
    derive: Make, engine: EngineClient, tmp_path: Path, value: str, why: str
) -> None:
    out = derive(sql(f"SELECT time_hour AS event_time, {value} AS x FROM flights"), flights=[])
    with pytest.raises(InvalidQuery, match=why):
        out.pull()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "in", store_schema=False)
    request = RawQueryRequest(
        input_data_paths=(str(tmp_path / "in"),),
        transform=sql(f"SELECT {value} AS x FROM input"),
        output_data_path=str(tmp_path / "out"),
    )
    with pytest.raises(InvalidQuery, match=why):
        engine.execute_raw_query(request)


def test_every_refused_type_is_tried() -> None:
    refused = {rule.sql for rule in RESULT_TYPES if not rule.becomes}
    assert {name for name in refused if any(f": {name} cannot" in why for _, why in UNSTORED)} == refused


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("timestamp_seconds(253402300800) AS event_time", r"column event_time: \+10000-01-01T00:00:00Z is"),
        ("DATE '9999-12-31' + 1 AS d", r"column d: \+10000-01-01 is"),
        ("array(timestamp_micros(-62135596800000001)) AS l", r"column l\[\]: 0000-12-31T23:59:59.999999Z is"),
        ("named_struct('t', timestamp_micros(9223372036854775807)) AS s", r"column s\.t: \+294247-01-10T"),
    ],
)
def test_a_time_of_an_unsupported_year_names_the_record_that_it_came_from(
    derive: Make, value: str, why: str
) -> None:
    computed, _, name = value.rpartition(" AS ")
    times = "" if name == "event_time" else ", time_hour AS event_time"
    query = f"SELECT CASE flight WHEN 7 THEN {computed} END AS {name}{times} FROM flights WHERE flight > 1"
    query = query.replace("END AS event_time", "ELSE time_hour END AS event_time")
    rows = [flight(DAY, number=number) for number in (1, 2, 3, 7, 7)]
    out = derive(sql(query), flights=[Block(rows=rows)])
    with pytest.raises(QueryFailed, match=why) as error:
        out.pull()
    assert "0001 to 9999 in UTC" in str(error.value)
    assert str(error.value).endswith("\nIt fails on the record of flights at offset 3")
    assert str(error.value).count("offset") == 1
    assert [(one.first, one.last) for one in error.value.records] == [(3, 3)]
    assert "by CASE" in error.value.instead


def test_a_time_of_an_unsupported_year_is_refused_in_windows_too(derive: Make) -> None:
    query = (
        "SELECT window.start AS event_time, max(timestampadd(YEAR, 9000, time_hour)) AS late FROM flights "
        "GROUP BY window(time_hour, '1 day')"
    )
    out = derive(sql(query), flights=[Block(rows=[flight(1)], watermark=2 * DAY)])
    with pytest.raises(
        QueryFailed, match=r"^column late: \+10970-01-01.*\nIt fails on .* at offset 0$"
    ) as error:
        out.pull()
    assert "by CASE" in error.value.instead


def test_a_null_struct_with_required_fields_is_null(derive: Make) -> None:
    nested = "named_struct('v', 1, 'in', named_struct('t', DATE '2026-01-31'))"
    query = f"SELECT time_hour AS event_time, CASE flight WHEN 1 THEN {nested} END AS s FROM flights"
    out = derive(sql(query), flights=[Block(rows=[flight(DAY, number=1), flight(DAY, number=2)])])
    out.pull()
    (table,) = out.tables
    assert [value is None for value in table.column("s").to_pylist()] == [False, True]
    assert table.column("s")[0].as_py() == {"v": 1, "in": {"t": date(2026, 1, 31)}}
