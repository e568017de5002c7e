"""Schemas in the forms of Arrow, ODF and SQL survive a round trip."""

import base64
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema, schema_to_ddl
from odf_common.data.odf_schema import from_arrow, to_arrow
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


UNITS = ("ms", "us", "ns")
LEAVES = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.decimal128(10, 2), pa.decimal256(50, 3)),
    *(pa.timestamp(unit, "UTC") for unit in UNITS),
    *(pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
)
NAMES = st.text("abz_019 -.ÅΩ", min_size=1, max_size=8)


def fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    parts = st.lists(
        st.tuples(NAMES, types, st.booleans()), min_size=1, max_size=4, unique_by=lambda one: one[0]
    )
    return parts.map(lambda given: [pa.field(*one) for one in given])


TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda of, nullable: pa.list_(pa.field("element", of, nullable)), inner, st.booleans()),
        fields(inner).map(pa.struct),
    ),
    max_leaves=6,
)
SCHEMAS = fields(TYPES).map(pa.schema)


@given(SCHEMAS)
def test_a_schema_survives_a_round_trip_through_any_form(schema: pa.Schema) -> None:
    assert to_arrow(from_arrow(schema)).equals(schema)
    assert ddl_to_schema(schema_to_ddl(schema)).equals(schema)
    assert schema_of_event(schema_to_event(schema)).equals(schema)
    assert schema_of_event(SetDataSchema(schema=from_arrow(schema))).equals(schema)


def test_layouts_of_the_same_values_are_one_type() -> None:
    for layout in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert to_arrow(from_arrow(pa.schema([("x", layout)]))).field("x").type == pa.string()
        assert schema_to_ddl(pa.schema([("x", layout)])) == ("x STRING",)
    fixed = pa.schema([("l", pa.list_(pa.field("element", pa.int8()), 3)), ("b", pa.binary(16))])
    assert to_arrow(from_arrow(fixed)).equals(fixed)
    sorted_map = pa.schema([("m", pa.map_(pa.string(), pa.field("value", pa.int8()), keys_sorted=True))])
    assert to_arrow(from_arrow(sorted_map)).equals(sorted_map)


def test_names_are_quoted_where_they_have_to_be() -> None:
    schema = pa.schema(
        [("plain_1", pa.int8()), ("with space", pa.int8()), ("a`b", pa.int8()), ("not", pa.int8())]
    )
    assert schema_to_ddl(schema) == (
        "plain_1 TINYINT",
        "`with space` TINYINT",
        '"a`b" TINYINT',
        "`not` TINYINT",
    )
    assert ddl_to_schema(schema_to_ddl(schema)).equals(schema)
    with pytest.raises(InvalidInput, match="quoted"):
        schema_to_ddl(pa.schema([('a`"b', pa.int8())]))


@pytest.mark.parametrize("type_", [pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])])
def test_a_type_without_counterpart_is_named(type_: pa.DataType) -> None:
    schema = pa.schema([("s", pa.struct([pa.field("x", type_)]))])
    for convert in (from_arrow, schema_to_ddl):
        with pytest.raises(InvalidInput, match=r"column s\.x"):
            convert(schema)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BOOLEAN", pa.bool_()),
        ("INT", pa.int32()),
        ("BIGINT", pa.int64()),
        ("DECIMAL(10, 2)", pa.decimal128(10, 2)),
        ("DECIMAL(5)", pa.decimal128(5, 0)),
        ("NUMERIC(60,3)", pa.decimal256(60, 3)),
        ("FLOAT", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("DOUBLE PRECISION", pa.float64()),
        ("UUID", pa.uuid()),
        ("STRING", pa.string()),
        ("VARCHAR(20)", pa.string()),
        ("TIMESTAMP", MS_UTC),
        ("TIMESTAMP(0)", pa.timestamp("s", "UTC")),
        ("TIMESTAMP(3)", MS_UTC),
        ("TIMESTAMP(6)", pa.timestamp("us", "UTC")),
        ("TIMESTAMP(9)", pa.timestamp("ns", "UTC")),
        ("TIMESTAMP(3) WITH TIME ZONE", MS_UTC),
        ("DATE", pa.date32()),
        ("TIME", pa.time32("ms")),
        ("TIME(3)", pa.time32("ms")),
        ("TIME(6)", pa.time64("us")),
        ("SMALLINT", pa.int16()),
        ("BIGINT UNSIGNED", pa.uint64()),
        ("BINARY", pa.binary()),
        ("ARRAY<INT>", pa.list_(pa.int32())),
        ("INT[]", pa.list_(pa.int32())),
        ("ARRAY<ARRAY<STRING>>", pa.list_(pa.list_(pa.string()))),
        (
            "STRUCT<lat DOUBLE NOT NULL, lon: DECIMAL(9,6)>",
            pa.struct([pa.field("lat", pa.float64(), nullable=False), ("lon", pa.decimal128(9, 6))]),
        ),
        (
            "STRUCT<tags ARRAY<STRING>, at TIMESTAMP(3)>",
            pa.struct([("tags", pa.list_(pa.string())), ("at", MS_UTC)]),
        ),
    ],
)
@pytest.mark.parametrize("spelling", [str, str.lower, str.title])
def test_a_type_is_known_in_any_case(text: str, expected: pa.DataType, spelling: type[str]) -> None:
    schema = ddl_to_schema([f"x {text if 'STRUCT' in text else spelling(text)}"])  # names keep their case
    assert schema.field("x").type == expected
    assert schema.field("x").nullable


def test_columns_keep_their_order_and_spelling() -> None:
    schema = ddl_to_schema(
        ["City STRING NOT NULL", "`event time` TIMESTAMP(3),", 'population BIGINT, "Größe" INT NULL']
    )
    assert schema.names == ["City", "event time", "population", "Größe"]
    assert [column.nullable for column in schema] == [False, True, True, True]


def test_no_columns_are_an_empty_schema() -> None:
    assert len(ddl_to_schema([])) == 0


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("a FOO", "a"),
        ("a", "a"),
        ("a DECIMAL(99, 1)", "a"),
        ("a DECIMAL(3, 5)", "a"),
        ("a DECIMAL(1,2,3)", "a"),
        ("a DECIMAL()", "a"),
        ("a TIMESTAMP(10)", "a"),
        ("a TIMESTAMP WITHOUT TIME ZONE", "a"),
        ("a ARRAY<INT", "a"),
        ("a ARRAY INT", "a"),
        ("a STRUCT<>", "a"),
        ("a INT NOT", "a"),
        ("a INT DEFAULT 5", "a"),
        ("a INT; DROP TABLE b", "a"),
        ("a MAP<STRING, INT>", "a"),
        ("b INT, a 'INT'", "a"),
        ("a " + "ARRAY<" * 100 + "INT" + ">" * 100, "a"),
        ("1 INT", "1 INT"),
    ],
)
def test_errors_are_reported_by_column(text: str, column: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ddl_to_schema([text])
    assert refused.value.where == f"column {column}"


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_definition_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a name and a type"):
        ddl_to_schema([text])


def test_a_column_is_defined_once() -> None:
    with pytest.raises(InvalidInput, match="column a: is defined twice"):
        ddl_to_schema(["a INT", "b INT", "a STRING"])


def test_the_limit_of_nesting_is_for_each_type() -> None:
    deep = "ARRAY<" * 30 + "INT" + ">" * 30
    wide = ", ".join(f"a{at}: {deep}" for at in range(3)) + "".join(f", b{at}: INT" for at in range(100))
    (field,) = ddl_to_schema([f"s STRUCT<{wide}>"])
    assert field.type.num_fields == 103
    with pytest.raises(InvalidInput, match="nested more than 32 deep"):
        ddl_to_schema([f"s STRUCT<a: ARRAY<{deep}>>"])


@pytest.mark.parametrize(
    ("text", "hint"),
    [("km DECIMAL(6", "quote it"), ("n BIGNT", r"unknown type BIGNT in 'n BIGNT'; did you mean BIGINT\?")],
)
def test_what_was_meant_is_proposed(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        ddl_to_schema([text])
