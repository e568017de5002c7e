"""Types without a counterpart in Spark: handled as strings there, or refused by column and type."""

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import VOCAB, WEATHER, Chain, Derivative, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.data.slices import write_slice
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import DatasetVocabulary
from odf_common.ports.engine import QueryTable
from odf_engine_spark.transform import adhoc
from odf_engine_spark.transform.execute_transform import Transforms
from odf_engine_spark.values.spark_types import spark_schema_of
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
