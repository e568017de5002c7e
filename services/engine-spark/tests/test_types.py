from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import FLIGHTS, VOCAB, WEATHER, Block, Chain, Derivative, Make, flight, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.data.ddl import schema_to_ddl
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.data.slices import write_slice
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import DatasetVocabulary
from odf_common.ports.engine import QueryFailed, QueryTable
from odf_engine_spark.transform import adhoc
from odf_engine_spark.transform.execute_transform import Transforms
from odf_engine_spark.values.spark_types import RESULT_TYPES, spark_schema_of
from odf_engine_spark.values.spark_values import in_spark

IDS = ("123e4567-e89b-12d3-a456-42661417400a", "00000000-0000-0000-0000-0000000000ff")
RAW = [UUID(each).bytes for each in IDS]


def uuids(*values: bytes | None) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


def a_table() -> pa.Table:
    struct = pa.struct([("u", pa.uuid()), ("t", pa.time64("us"))])
    inside = pa.StructArray.from_arrays(
        [uuids(RAW[0], None, RAW[1]), pa.array([1, 2, 3], pa.time64("us"))],
        fields=list(struct),
        mask=pa.array([False, False, True]),
    )
    listed = pa.ListArray.from_arrays([0, 2, 2, 3], uuids(RAW[0], None, RAW[1]))
    return pa.table(
        {
            "offset": pa.array([0, 1, 2], pa.uint64()),
            "u": uuids(RAW[0], None, RAW[1]),
            "t": pa.array([45_296_789, None, 0], pa.time32("ms")),
            "at": pa.array([1_234_567_891, None, 0], pa.timestamp("ns", "UTC")),
            "s": inside,
            "l": listed,
        }
    )


ROWS = [
    {"u": IDS[0], "t": "12:34:56.789", "s": {"u": IDS[0], "t": "00:00:00.000001"}, "l": [IDS[0], None]},
    {"u": None, "t": None, "s": {"u": None, "t": "00:00:00.000002"}, "l": []},
    {"u": IDS[1], "t": "00:00:00.000", "s": None, "l": [IDS[1]]},
]


def plain(table: pa.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = table.select(["u", "t", "s", "l"]).to_pylist()
    return rows


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_uuids_and_times_are_strings_in_spark_at_any_depth(start: int) -> None:
    table = a_table().slice(start)
    inside = in_spark(table, spark_schema_of(table.schema))
    inside.validate(full=True)
    assert plain(inside) == ROWS[start:]


def test_a_column_that_was_added_later_is_null() -> None:
    target = spark_schema_of(a_table().schema)
    inside = in_spark(a_table().drop_columns(["u", "s"]), target)
    assert inside.schema.equals(target)
    assert inside.column("s").null_count == 3


@pytest.mark.parametrize("in_memory", [adhoc.MAX_BYTES_IN_MEMORY, 0])
def test_queries_read_them_out_of_slices_of_any_size(
    engine: EngineClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(adhoc, "MAX_BYTES_IN_MEMORY", in_memory)
    table = a_table()
    write_slice(table, tmp_path / "slice")
    asked = QueryTable(name="t", schema=table.schema, data_paths=(str(tmp_path / "slice"),))
    answer = engine.query(f"SELECT * FROM t WHERE u IS NULL OR u <> '{IDS[1]}'", (asked,))
    assert plain(answer) == ROWS[:2]
    assert answer.column("at").cast(pa.int64()).to_pylist() == [1_234_567, None]


@pytest.mark.parametrize("in_memory", [adhoc.MAX_BYTES_IN_MEMORY, 0])
def test_unsigned_integers_of_any_size_are_queried(
    engine: EngineClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(adhoc, "MAX_BYTES_IN_MEMORY", in_memory)
    table = pa.table({name: pa.array([1, None, 3], pa.uint64()) for name in ("offset", "small", "huge")})
    table = table.set_column(0, "offset", pa.array([0, 1, 2], pa.uint64()))
    table = table.set_column(2, "huge", pa.array([0, None, 2**64 - 1], pa.uint64()))
    write_slice(table, tmp_path / "slice")
    asked = QueryTable(name="t", schema=table.schema, data_paths=(str(tmp_path / "slice"),))
    answer = engine.query("SELECT * FROM t", (asked,))
    assert answer.to_pylist() == table.to_pylist()
    assert [str(field.type) for field in answer.schema] == ["int64", "int64", "decimal128(20, 0)"]


@pytest.mark.parametrize(
    ("type_", "is_scanned"),
    [
        (pa.list_(pa.string()), True),
        (pa.struct([("a", pa.list_(pa.int8()))]), True),
        (pa.timestamp("us", "UTC"), True),
        (pa.timestamp("ns", "UTC"), False),
        (pa.list_(pa.uuid()), False),
        (pa.struct([("a", pa.list_(pa.time64("us")))]), False),
    ],
)
def test_spark_scans_what_it_knows(type_: pa.DataType, is_scanned: bool) -> None:
    assert adhoc._is_scanned(type_) == is_scanned


def test_preprocessing_has_them_as_strings(engine: EngineClient, tmp_path: Path) -> None:
    pq.write_table(a_table(), tmp_path / "in", store_schema=False)
    request = RawQueryRequest(
        input_data_paths=(str(tmp_path / "in"),),
        transform=sql("SELECT u, t, s, l FROM input"),
        output_data_path=str(tmp_path / "out"),
    )
    assert engine.execute_raw_query(request).num_records == 3
    assert plain(pq.read_table(tmp_path / "out")) == ROWS


def test_transforms_have_them_as_strings(transforms: Transforms, tmp_path: Path) -> None:
    schema = pa.schema([*list(WEATHER)[:4], pa.field("u", pa.uuid()), pa.field("t", pa.time32("ms"))])
    chain = Chain(name="w", schema=schema, vocab=VOCAB, folder=tmp_path)
    chain.blocks.append((0, tmp_path / "slice", 0, 0, None))
    moment = pa.array([5], pa.timestamp("ms", "UTC"))
    record = [pa.array([0], pa.uint64()), pa.array([0], pa.uint8()), moment, moment]
    rows = [*record, uuids(RAW[0]), pa.array([45_296_789], pa.time32("ms"))]
    pq.write_table(pa.Table.from_arrays(rows, schema=schema), tmp_path / "slice", store_schema=False)
    query = sql(f"SELECT time_hour AS event_time, u, t FROM w WHERE u = '{IDS[0]}'")
    out = Derivative(transforms=transforms, transform=query, chains=[chain], folder=tmp_path)
    out.pull()
    assert out.rows() == [(0, 5, IDS[0], "12:34:56.789")]


def test_a_type_without_a_counterpart_is_refused_by_column_and_type(engine: EngineClient) -> None:
    schema = pa.schema([*WEATHER, pa.field("s", pa.struct([("d", pa.decimal256(50, 2))]))])
    with pytest.raises(
        InvalidQuery, match=r"column s\.d: type decimal256\(50, 2\) has no counterpart in Spark"
    ):
        engine.validate(
            sql("SELECT time_hour AS event_time FROM w"), {"w": schema}, {"w": VOCAB}, DatasetVocabulary()
        )


def test_parts_of_a_struct_are_found_by_name() -> None:
    place = pa.StructArray.from_arrays([pa.array([59.9]), pa.array([10.7])], ["lat", "lon"])
    wanted = pa.schema(
        [("place", pa.struct([("lon", pa.float64()), ("lat", pa.float64()), ("alt", pa.float64())]))]
    )
    table = in_spark(pa.table({"place": place}), wanted)
    assert table.column("place").to_pylist() == [{"lon": 10.7, "lat": 59.9, "alt": None}]


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


NOON: Final = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z, in µs
WITHOUT_DATE: Final = ("10:00", "T10", " 7:5:3.25", "\t10:00:00+02:00", ":30", "T10:00 Europe/Oslo")
WITH_DATE: Final = ("2026-03-01 12:00:00", " 2026-03-01T14:00:00+02:00 ", "2026-03-01 13:00:00 Europe/Oslo")
STRICT: Final = (
    "CAST(origin AS TIMESTAMP)",
    "to_timestamp(origin)",
    "timestamp(origin)",
    "origin::timestamp",
)
LENIENT: Final = ("try_cast(origin AS TIMESTAMP)", "try_to_timestamp(origin)")
NESTED: Final = "element_at(transform(array(origin), x -> CAST(x AS TIMESTAMP)), 1)"
EVERYWHERE: Final = (
    "SELECT time_hour AS event_time, flight FROM flights WHERE origin > time_hour",
    """SELECT a.time_hour AS event_time, a.flight FROM flights AS a JOIN flights AS b
    ON a.origin = b.time_hour AND b.time_hour BETWEEN a.time_hour AND a.time_hour + INTERVAL 1 HOUR""",
    """SELECT window.start AS event_time, max(CAST(origin AS TIMESTAMP)) FROM flights
    GROUP BY window(time_hour, '1 hour'), hour(origin)""",
    """SELECT max(time_hour) AS event_time, CAST(origin AS TIMESTAMP) AS t FROM flights
    GROUP BY CAST(origin AS TIMESTAMP)""",
    "SELECT time_hour AS event_time, flight FROM flights LATERAL VIEW explode(array(to_timestamp(origin))) AS t",
    "SELECT time_hour AS event_time, sum(hour(origin)) OVER (PARTITION BY flight ORDER BY time_hour) FROM flights",
)
INSIDE: Final = (
    "from_json(origin, 't TIMESTAMP')",
    "from_json(origin, 'ARRAY<TIMESTAMP>')",
    "from_json(origin, 'MAP<STRING, TIMESTAMP>')",
    "from_json(origin, 't TIMESTAMP', map('dateFormat', 'yyyy'))",
    "from_csv(origin, 'n INT, t TIMESTAMP')",
    "variant_get(parse_json(origin), '$.t', 'TIMESTAMP')",
    "try_variant_get(parse_json(origin), '$', 'STRUCT<t: TIMESTAMP>')",
    "parse_json(origin):t::timestamp",
    "CAST(parse_json(origin) AS ARRAY<TIMESTAMP>)",
    "CAST(array(origin) AS ARRAY<TIMESTAMP>)",
    "try_cast(array(origin) AS ARRAY<TIMESTAMP>)",
    "CAST(named_struct('n', 1, 't', map('a', origin)) AS STRUCT<n: INT, t: MAP<STRING, TIMESTAMP>>)",
    "concat(array(time_hour), array(origin))",
)
WITHOUT_TIME: Final = (
    "from_json(origin, 't TIMESTAMP', map('timestampFormat', 'HH:mm')).t",
    "from_csv(origin, 't TIMESTAMP', map('TimestampFormat', 'HH:mm')).t",
    "from_json(origin, 'timestamp STRING, t TIMESTAMP_NTZ, d DATE').d",
    "CAST(variant_get(parse_json(origin), '$.t', 'STRING') AS TIMESTAMP)",
    "element_at(CAST(array(time_hour) AS ARRAY<STRING>), 1)",
    "size(CAST(array(to_date(time_hour)) AS ARRAY<TIMESTAMP>))",
)


def _flights(texts: tuple[str, ...]) -> list[Block]:
    return [Block(rows=[flight(number, origin=text) for number, text in enumerate(texts)])]


@pytest.mark.parametrize("expression", LENIENT)
def test_it_is_null_where_other_strings_without_a_time_are(derive: Make, expression: str) -> None:
    query = sql(f"SELECT time_hour AS event_time, unix_micros({expression}) FROM flights")
    out = derive(query, flights=_flights((*WITHOUT_DATE, *WITH_DATE, "soon")))
    out.pull()
    assert [row[2] for row in out.rows()] == [*[None] * len(WITHOUT_DATE), *[NOON] * len(WITH_DATE), None]


@pytest.mark.parametrize("text", WITHOUT_DATE)
@pytest.mark.parametrize("expression", [*STRICT, NESTED])
def test_it_ends_the_query_and_is_named(derive: Make, expression: str, text: str) -> None:
    query = sql(f"SELECT time_hour AS event_time, {expression} AS t FROM flights")
    with pytest.raises(QueryFailed, match="a time of day without a date: "):
        derive(query, flights=_flights((text,))).pull()


@pytest.mark.parametrize("query", EVERYWHERE)
def test_it_is_found_wherever_strings_are_converted(derive: Make, query: str) -> None:
    blocks = [*_flights(("10:00",)), Block(watermark=2_000_000_000_000)]
    with pytest.raises(QueryFailed, match="a time of day without a date"):
        derive(sql(query), flights=blocks).pull()


def test_it_is_null_in_preprocess_too(engine: EngineClient, tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"at": [WITHOUT_DATE[0], WITH_DATE[0]]}), source)
    query = sql("SELECT unix_micros(try_to_timestamp(at)) AS at FROM input")
    request = RawQueryRequest(input_data_paths=(str(source),), transform=query, output_data_path=str(out))
    engine.execute_raw_query(request)
    assert pq.read_table(out).column("at").to_pylist() == [None, NOON]


@pytest.mark.parametrize("expression", INSIDE)
def test_strings_inside_of_other_values_are_refused_in_new_queries(
    engine: EngineClient, expression: str
) -> None:
    query = sql(f"SELECT time_hour AS event_time, to_json(struct({expression} AS x)) AS x FROM flights")
    asked = (query, {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary())
    with pytest.raises(
        InvalidQuery, match=r"a time of day without a date would be one of today; (give|get|CAST)"
    ):
        engine.validate(*asked, is_new=True)
    assert engine.validate(*asked).schema is not None  # what a chain has
    preprocess = sql(f"SELECT to_json(struct({expression} AS x)) AS x FROM input")
    with pytest.raises(InvalidQuery, match="would be one of today"):
        engine.validate_preprocess(preprocess, FLIGHTS)


def test_strings_with_a_format_and_other_types_are_not(engine: EngineClient) -> None:
    for expression in WITHOUT_TIME:
        query = sql(f"SELECT time_hour AS event_time, {expression} AS x FROM flights")
        asked = (query, {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary())
        assert engine.validate(*asked, is_new=True).schema is not None, expression
