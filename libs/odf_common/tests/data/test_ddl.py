import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput

MS_UTC = pa.timestamp("ms", "UTC")


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
