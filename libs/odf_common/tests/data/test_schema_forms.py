"""Schemas in the forms of Arrow, ODF and SQL survive a round trip."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema, schema_to_ddl
from odf_common.data.odf_schema import from_arrow, to_arrow
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SetDataSchema

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
