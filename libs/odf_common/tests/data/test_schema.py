import base64
import random

import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.schema_evolution import check_evolution, schema_of_event, schema_to_event
from odf_common.errors import InvalidInput
from odf_common.metadata import data_schema as odf
from odf_common.metadata.events import SetDataSchema

MS_UTC = pa.timestamp("ms", "UTC")
OF_THE_REFERENCE = base64.b64decode(
    "DAAAAAgACAAAAAQACAAAAAQAAAACAAAAQAAAAAQAAADY////GAAAAAwAAAAAAAAGEAAAAAAAAAAEAAQABAAAAAEAAABiAAAAEAAUABAAAAAPAAQA"
    "AAAIABAAAAAYAAAAIAAAAAAAAAIcAAAACAAMAAQACwAIAAAAQAAAAAAAAAEAAAAAAQAAAGEAAAA="
)
EVERYTHING = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("at", MS_UTC, nullable=False),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("wide", pa.decimal256(60, 2)),
        pa.field("id", pa.uuid()),
        pa.field("key", pa.binary(4)),
        pa.field("time", pa.time64("us")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("place", pa.struct([pa.field("lat", pa.float64(), nullable=False), ("lon", pa.float32())])),
    ]
)


def test_a_schema_is_read_as_it_was_written() -> None:
    event = schema_to_event(EVERYTHING.with_metadata({"a": "b"}))
    assert schema_of_event(event).equals(EVERYTHING, check_metadata=False)
    assert schema_of_event(event).metadata is None
    assert schema_to_event(EVERYTHING) == event


def test_a_schema_of_the_reference_is_read() -> None:
    schema = schema_of_event(SetDataSchema(raw_arrow_schema=OF_THE_REFERENCE))
    assert schema.equals(
        pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.bool_(), nullable=False)])
    )


def test_the_announced_schema_is_that_of_the_slices() -> None:
    schema = pa.schema(
        [
            ("text", pa.dictionary(pa.int8(), pa.large_string())),
            ("at", pa.timestamp("ns")),
            ("day", pa.date64()),
            ("list", pa.list_(pa.string_view(), 2)),
        ]
    )
    assert schema_of_event(schema_to_event(schema)).equals(
        pa.schema(
            [
                ("text", pa.string()),
                ("at", pa.timestamp("ns", "UTC")),
                ("day", pa.date32()),
                ("list", pa.list_(pa.field("element", pa.string()))),
            ]
        )
    )


def test_an_odf_schema_is_read_with_its_defaults() -> None:
    fields: dict[str, odf.DataType] = {
        "offset": odf.DataTypeUInt64(),
        "at": odf.DataTypeTimestamp(),
        "local": odf.DataTypeTimestamp(unit=odf.TimeUnit.Nanosecond, timezone="Europe/Kyiv"),
        "city": odf.DataTypeOption(inner=odf.DataTypeString()),
        "price": odf.DataTypeDecimal(precision=10, scale=2),
        "key": odf.DataTypeBinary(fixed_length=4),
        "time": odf.DataTypeTime(),
        "exact": odf.DataTypeTime(unit=odf.TimeUnit.Microsecond),
        "took": odf.DataTypeDuration(),
        "tags": odf.DataTypeList(item_type=odf.DataTypeOption(inner=odf.DataTypeString())),
        "place": odf.DataTypeStruct(fields=(odf.DataField(name="lat", type=odf.DataTypeFloat64()),)),
        "map": odf.DataTypeMap(key_type=odf.DataTypeString(), value_type=odf.DataTypeInt8()),
        "none": odf.DataTypeNull(),
    }
    schema = odf.DataSchema(fields=tuple(odf.DataField(name=name, type=t) for name, t in fields.items()))
    read = schema_of_event(SetDataSchema(schema=schema))
    assert [name for name in read.names if read.field(name).nullable] == ["city", "none"]
    assert {name: read.field(name).type for name in read.names} == {
        "offset": pa.uint64(),
        "at": MS_UTC,
        "local": pa.timestamp("ns", "Europe/Kyiv"),
        "city": pa.string(),
        "price": pa.decimal128(10, 2),
        "key": pa.binary(4),
        "time": pa.time32("ms"),
        "exact": pa.time64("us"),
        "took": pa.duration("ms"),
        "tags": pa.list_(pa.field("element", pa.string())),
        "place": pa.struct([pa.field("lat", pa.float64(), nullable=False)]),
        "map": pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)),
        "none": pa.null(),
    }


@pytest.mark.parametrize("raw", [b"", b"\0", b"\xff" * 64, OF_THE_REFERENCE[:70], OF_THE_REFERENCE[4:]])
def test_bytes_that_are_no_schema_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="not an Arrow schema"):
        schema_of_event(SetDataSchema(raw_arrow_schema=raw))


def test_damaged_bytes_are_a_schema_or_refused() -> None:
    chance = random.Random(3)
    raw = schema_to_event(EVERYTHING).raw_arrow_schema
    assert raw is not None
    for _ in range(3000):
        damaged = bytearray(raw)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(raw))] = chance.randrange(256)
        try:
            schema_of_event(SetDataSchema(raw_arrow_schema=bytes(damaged)))
        except InvalidInput:
            continue


@pytest.mark.parametrize(
    "event",
    [
        SetDataSchema(),
        SetDataSchema(
            schema=odf.DataSchema(
                fields=(odf.DataField(name="x", type=odf.DataTypeDecimal(precision=900, scale=2)),)
            )
        ),
        SetDataSchema(
            schema=odf.DataSchema(
                fields=(odf.DataField(name="x", type=odf.DataTypeBinary(fixed_length=2**63)),)
            )
        ),
    ],
)
def test_an_impossible_schema_is_refused(event: SetDataSchema) -> None:
    with pytest.raises(InvalidInput, match=r"neither an Arrow schema nor|column x: "):
        schema_of_event(event)


OLD = pa.schema(
    [pa.field("a", pa.int32(), nullable=False), ("b", pa.string()), ("s", pa.struct([("x", pa.int8())]))]
)


@pytest.mark.parametrize(
    ("new", "changed"),
    [
        (OLD, False),
        (OLD.with_metadata({"k": "v"}), False),
        (OLD.set(1, pa.field("b", pa.large_string())), False),
        (OLD.append(pa.field("c", pa.int32())), True),
        (pa.schema([OLD.field(1), OLD.field(0), OLD.field(2)]), True),
        (OLD.set(2, pa.field("s", pa.struct([("x", pa.int8()), ("y", pa.int8())]))), True),
    ],
)
def test_compatible_changes_are_distinguished_from_none(new: pa.Schema, changed: bool) -> None:
    assert check_evolution(OLD, new) is changed


@pytest.mark.parametrize(
    ("new", "column"),
    [
        (OLD.remove(1), "b"),
        (OLD.append(pa.field("c", pa.int32(), nullable=False)), "c"),
        (OLD.set(0, pa.field("a", pa.int64(), nullable=False)), "a"),
        (OLD.set(0, pa.field("a", pa.int32())), "a"),
        (OLD.set(1, pa.field("b", pa.string(), nullable=False)), "b"),
        (OLD.set(2, pa.field("s", pa.struct([("y", pa.int8())]))), "s.x"),
    ],
)
def test_a_change_that_breaks_readers_is_refused_by_column(new: pa.Schema, column: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_evolution(OLD, new)
    assert refused.value.where == f"column {column}"


@pytest.mark.parametrize("new", ["BIGINT", "DOUBLE", "DECIMAL(12, 2)"])
@pytest.mark.parametrize("old", ["INT", "DECIMAL(10, 2)", "STRING"])
def test_a_number_column_that_becomes_too_small_names_the_ways_that_exist(old: str, new: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_evolution(ddl_to_schema([f"id {old}"]), ddl_to_schema([f"id {new}"]))
    is_number = old != "STRING"
    assert str(refused.value).startswith(f"column id: was {old} and cannot become {new}")
    assert ("new column" in str(refused.value), "new dataset" in str(refused.value)) == (is_number, is_number)
