"""Every kind of value meets every declared type, on every way in: it arrives exactly, or is refused (decision 80)."""

import base64
import contextlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapefile
from fastavro import schemaless_writer
from odf_testing.registry import descriptor_of

from odf_common.data import ddl
from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.hashing.logical import UnhashableType, check_hashable
from odf_common.metadata.events import (
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from odf_ingest.read import read_batch, read_records
from odf_ingest.read.arrow_ipc import ReadArrowIpc
from odf_ingest.read.input_format import BY_NAME
from odf_ingest.read.types.conversions import TABLE, convert_column
from odf_ingest.read.types.kinds import DECLARED, FORMATS, DecodedJson, TimeFormats, ValueKind, kind_of
from odf_ingest.read.types.times import refusing_finer_times
from odf_ingest.registry.avro import avro_decoder
from odf_ingest.registry.client import Schema
from odf_ingest.registry.protobuf import ProtobufDecoder

from .conversion_oracle import (
    NUMBERS,
    REFUSED,
    TEXTS,
    Value,
    array_of,
    expected,
    is_same,
    meaning_of,
    typed_values,
)

NESTED: Final = ("ARRAY<BIGINT>", "STRUCT<v: BIGINT>")
TYPES: Final = (
    *(
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "STRING",
        "BINARY",
        "UUID",
        "DATE",
    ),
    *("TINYINT UNSIGNED", "SMALLINT UNSIGNED", "INT UNSIGNED", "BIGINT UNSIGNED"),
    *("DECIMAL(10, 2)", "DECIMAL(38, 9)", "DECIMAL(4, 4)", "DECIMAL(50, 2)"),
    *("TIME(0)", "TIME(3)", "TIME(6)", "TIME(9)"),
    *("TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)"),
)
TARGETS: Final = [
    *(ddl_to_schema([f"c {type_}"]).field(0).type for type_ in (*TYPES, *NESTED)),
    *(pa.float16(), pa.binary(16)),  # which only an ODF schema declares
]
Read = Callable[[Value, pa.Field], pa.Array]  # a null, if the format has one, then the value
FEW_TEXTS: Final = (
    "1969-12-31T23:59:59.9999Z",
    "1955-03-01",
    "12:34",
    "123e4567-e89b-12d3-a456-426614174000",
)
JSON_VALUES: Final = [
    *(Value(ValueKind.NUMBER, pa.string(), text, text) for text in NUMBERS),
    *(Value(ValueKind.STRING, pa.string(), text, text) for text in (*TEXTS, *NUMBERS)),
    *(Value(ValueKind.BOOLEAN, pa.bool_(), raw, raw) for raw in (True, False)),
]
SHAPEFILE_VALUES: Final = [
    value
    for value in JSON_VALUES
    if value.kind is ValueKind.BOOLEAN
    or (value.kind is ValueKind.STRING and 0 < len(value.raw) < 40)
    or (value.kind is ValueKind.NUMBER and re.fullmatch(r"-?\d{1,9}(\.\d{1,3})?", value.raw))
]
CONTAINERS: Final = [
    *(
        Value(ValueKind.OBJECT, pa.string(), text, text)
        for text in ('{"v":\t"x" , "w":1e3}', '{"v":[{}],"ä":"\\u00e4}"}')
    ),
    *(Value(ValueKind.ARRAY, pa.string(), text, text) for text in ('[ "x" ]', '["\\n]",[1.50,null]]')),
]
DECLARED_COLUMNS: Final = (
    "c STRING",
)  # the columns are those of the schema; a source that declares any keeps text
FEW_VALUES: Final = [value for value in JSON_VALUES if value.raw in {True, "19.99", "128", *FEW_TEXTS}]
TEXT_VALUES: Final = [Value(ValueKind.TEXT, pa.string(), text, text) for text in (*TEXTS, *NUMBERS)]
INSTEAD: Final = r"; |, such as |outside of the years|is not a value of (TIMESTAMP|DATE)"


def arrow_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def parquet_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def parquet_values() -> list[Value]:
    """Return the values that Parquet can have."""
    values = []
    for value in typed_values():
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            table = pa.table({"c": array_of(value)})
            if pq.read_table(pa.BufferReader(parquet_file(table))).equals(table):
                values.append(value)
    return values


def of_table(step: ReadStepParquet, write: Callable[[pa.Table], bytes]) -> Read:
    def read(value: Value, field: pa.Field) -> pa.Array:
        raw = write(pa.table({"c": array_of(value)}))
        return read_batch(step, raw, pa.schema([field]))["c"].combine_chunks()

    return read


def of_nested_table(value: Value, field: pa.Field) -> pa.Array:
    values = array_of(value)
    structs = pa.StructArray.from_arrays([values.slice(1)], ["v"])
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 1], pa.int32()), structs)
    schema = pa.schema([("c", pa.list_(pa.field("element", pa.struct([("v", field.type)]))))])
    table = read_batch(ReadArrowIpc(), arrow_file(pa.table({"c": lists})), schema)
    assert table.schema.equals(schema)
    return table["c"].combine_chunks().flatten().field(0)


def literal(value: Value) -> str:
    is_raw = value.kind in {ValueKind.NUMBER, ValueKind.ARRAY, ValueKind.OBJECT}
    return value.raw if is_raw else json.dumps(value.raw)


def of_csv(value: Value, field: pa.Field) -> pa.Array:
    text = value.raw.replace('"', '""')
    schema = pa.schema([("n", pa.int64()), field])
    return read_batch(ReadStepCsv(), f'1,\n2,"{text}"'.encode(), schema)["c"].combine_chunks()


def of_text(value: Value, field: pa.Field) -> pa.Array:
    column = pa.chunked_array([pa.array([None, value.raw], pa.string())])
    return convert_column(column, field, TimeFormats(strings=ValueKind.TEXT)).combine_chunks()


def of_json(step: Any, text: str, value: Value, field: pa.Field) -> pa.Array:
    raw = text.replace("?", literal(value)).encode()
    return read_batch(step, raw, pa.schema([field]))["c"].combine_chunks()


def of_nested_json(value: Value, field: pa.Field) -> pa.Array:
    schema = pa.schema([("c", pa.list_(pa.field("element", pa.struct([("v", field.type)]))))])
    raw = f'{{"c":null}}\n{{"c":[{{"v":{literal(value)}}}]}}'.encode()
    step = ReadStepNdJson(ddl_schema=DECLARED_COLUMNS)
    return read_batch(step, raw, schema)["c"].combine_chunks().flatten().field(0)


def of_payload(name: str, decode: Callable[[str, Any], str], value: Value, field: pa.Field) -> pa.Array:
    """Read the JSON that a message becomes; numbers are 64-bit integers or doubles."""
    del name
    if value.kind is ValueKind.NUMBER:
        is_whole = re.fullmatch(r"-?\d+", value.raw) is not None and int(value.raw) < 2**63
        text = decode("long" if is_whole else "double", int(value.raw) if is_whole else float(value.raw))
    else:
        text = decode("boolean" if value.kind is ValueKind.BOOLEAN else "string", value.raw)
    return read_records(DecodedJson(ddl_schema=DECLARED_COLUMNS), [text.encode()], pa.schema([field]))[
        "c"
    ].combine_chunks()


def avro_json(type_: str, raw: Any) -> str:
    schema = {"type": "record", "name": "R", "fields": [{"name": "c", "type": type_}]}
    out = io.BytesIO()
    schemaless_writer(out, schema, {"c": raw})
    return avro_decoder(Schema(kind="AVRO", text=json.dumps(schema)))(out.getvalue())


PROTOBUF: Final = {"long": "int64", "double": "double", "boolean": "bool", "string": "string"}
DECODERS: Final = {
    name: ProtobufDecoder(
        Schema(kind="PROTOBUF", text=descriptor_of(f'syntax = "proto3"; message R {{ {type_} c = 1; }}'))
    )
    for name, type_ in PROTOBUF.items()
}


def protobuf_json(type_: str, raw: Any) -> str:
    if type_ == "double":
        payload = b"\x09" + struct.pack("<d", raw)
    elif type_ == "string":
        payload = b"\x0a" + varint(len(raw.encode())) + raw.encode()
    else:
        payload = b"\x08" + varint(int(raw))
    return DECODERS[type_](b"\0" + payload)


def varint(value: int) -> bytes:
    value, out = value % 2**64, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def of_shapefile(value: Value, field: pa.Field) -> pa.Array:
    files = {name: io.BytesIO() for name in ("shp", "shx", "dbf")}
    with shapefile.Writer(**files, encoding="utf-8", shapeType=shapefile.NULL) as writer:
        writer.field("c", {ValueKind.NUMBER: "N", ValueKind.BOOLEAN: "L"}.get(value.kind, "C"), 60, 3)
        writer.record("" if value.kind is ValueKind.STRING else None)
        writer.null()
        writer.record(float(value.raw) if value.kind is ValueKind.NUMBER else value.raw)
        writer.null()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for suffix, content in files.items():
            file.writestr(f"a.{suffix}", content.getvalue())
    table = read_batch(
        ReadStepEsriShapefile(), archive.getvalue(), pa.schema([field, ("geometry", pa.string())])
    )
    return table["c"].combine_chunks()


FEATURE: Final = '{"type":"Feature","geometry":null,"properties":{"c":?}}'
COLLECTION: Final = f'{{"type":"FeatureCollection","features":[{FEATURE.replace("?", "null")},{FEATURE}]}}'
READERS: Final[Mapping[str, tuple[Read, list[Value]]]] = {
    "csv": (of_csv, TEXT_VALUES),
    "keys and headers of messages": (of_text, TEXT_VALUES),
    "json": (
        partial(of_json, ReadStepJson(ddl_schema=DECLARED_COLUMNS), '[{"c":null},{"c":?}]'),
        [*FEW_VALUES, *CONTAINERS],
    ),
    "ndjson": (
        partial(of_json, ReadStepNdJson(ddl_schema=DECLARED_COLUMNS), '{"c":null}\n{"c":?}'),
        [*JSON_VALUES, *CONTAINERS],
    ),
    "ndjson, nested": (of_nested_json, [*FEW_VALUES, *CONTAINERS]),
    "geojson": (partial(of_json, ReadStepGeoJson(), COLLECTION), FEW_VALUES),
    "ndgeojson": (partial(of_json, ReadStepNdGeoJson(), FEATURE), FEW_VALUES),
    "esrishapefile": (of_shapefile, SHAPEFILE_VALUES),
    "avro": (partial(of_payload, "avro", avro_json), JSON_VALUES),
    "protobuf": (partial(of_payload, "protobuf", protobuf_json), JSON_VALUES),
    "parquet": (of_table(ReadStepParquet(), parquet_file), parquet_values()),
    "arrow": (of_table(ReadArrowIpc(), arrow_file), typed_values()),
    "arrow, nested": (of_nested_table, typed_values()),
}


def outcome(read: Read, value: Value, target: pa.DataType) -> Any:
    try:
        array = read(value, pa.field("c", target))
    except InvalidInput as error:
        return error
    assert array.type == target
    return meaning_of(array)


def fault(name: str, value: Value, target: pa.DataType, found: Any, wanted: Any) -> str | None:
    """Return what is wrong about an outcome."""
    what = f"{value.raw!r} ({value.type}) → {target}: "
    if not isinstance(found, InvalidInput):
        return None if is_same(found, wanted) else f"{what}{found!r} instead of {wanted!r}"
    text = str(found)
    if wanted != REFUSED:
        return f"{what}refused ({text}) instead of {wanted!r}"
    is_table = name.startswith(("parquet", "arrow"))
    is_placed = re.search(r"column c[\[\].v]*: ", text) and (not is_table or text.startswith("row 2: "))
    return None if is_placed and re.search(INSTEAD, text) else f"{what}bad reason: {text}"


@pytest.mark.parametrize("refuses_finer", [False, True], ids=["cut", "refuse"])
@pytest.mark.parametrize("name", READERS)
def test_a_value_arrives_exactly_or_is_refused_by_place_value_and_type(
    name: str, *, refuses_finer: bool
) -> None:
    read, values = READERS[name]
    targets = TARGETS
    if refuses_finer:
        targets = [target for target in TARGETS if pa.types.is_temporal(target)]
        values = [value for value in values if isinstance(value.raw, str) or pa.types.is_temporal(value.type)]
    faults, accepted = [], set()
    for value in values:
        for target in targets:
            if is_impossible(name, target):
                continue
            with refusing_finer_times(is_on=refuses_finer):
                found = outcome(read, value, target)
            wanted = wanted_of(name, value, target, refuses_finer=refuses_finer)
            if wanted != REFUSED:
                accepted.add((value.kind, kind_of(target)))
            faults.append(fault(name, value, target, found, wanted))
    assert [text for text in faults if text is not None] == []
    usual = {
        pair for pair, rule in TABLE.items() if rule.accepts and pair[0] in FORMATS[name.partition(",")[0]]
    }
    if not refuses_finer:
        tried = {pair for pair in usual if pair[1] not in {ValueKind.LIST, ValueKind.STRUCT}}
        assert accepted == tried - {(ValueKind.NUMBER, ValueKind.TIMESTAMP)}


def is_impossible(name: str, target: pa.DataType) -> bool:
    """Return whether a format never has columns of the type: they are refused as a whole."""
    is_text = not name.startswith(("arrow", "parquet", "keys"))
    return (name == "csv" and pa.types.is_nested(target)) or (is_text and pa.types.is_float16(target))


def wanted_of(name: str, value: Value, target: pa.DataType, *, refuses_finer: bool) -> Any:
    if name in {"avro", "protobuf"}:
        if value.kind is ValueKind.NUMBER and (
            not value.raw.lstrip("-").isdigit() or int(value.raw) >= 2**63
        ):
            value = Value(ValueKind.NUMBER, value.type, value.raw, repr(float(value.raw)))
        if value.kind is ValueKind.STRING and kind_of(target) is ValueKind.BINARY:
            return wanted_of_base64(value, target)
    if name == "esrishapefile" and value.raw == "":
        return REFUSED
    return expected(value, target, refuses_finer=refuses_finer)


def wanted_of_base64(value: Value, target: pa.DataType) -> Any:
    try:
        raw = base64.b64decode(value.raw, validate=True)
    except ValueError:
        return REFUSED
    return REFUSED if pa.types.is_fixed_size_binary(target) and len(raw) != target.byte_width else raw


EXAMPLES: Final[Mapping[str, pa.DataType | None]] = {
    **{
        f"{sign}INT{bits}": getattr(pa, f"{sign.lower()}int{bits}")()
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
    **{f"DECIMAL{bits}": getattr(pa, f"decimal{bits}")(5, 2) for bits in (32, 64, 128, 256)},
    "BOOL": pa.bool_(),
    "HALF_FLOAT": pa.float16(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "LARGE_STRING": pa.large_string(),
    "STRING_VIEW": pa.string_view(),
    "BINARY": pa.binary(),
    "LARGE_BINARY": pa.large_binary(),
    "BINARY_VIEW": pa.binary_view(),
    "FIXED_SIZE_BINARY": pa.binary(16),
    "DATE32": pa.date32(),
    "DATE64": pa.date64(),
    "TIME32": pa.time32("ms"),
    "TIME64": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "LIST": pa.list_(pa.int8()),
    "LARGE_LIST": pa.large_list(pa.int8()),
    "FIXED_SIZE_LIST": pa.list_(pa.int8(), 2),
    "MAP": pa.map_(pa.string(), pa.int8()),
    "STRUCT": pa.struct([("v", pa.int8())]),
    "DICTIONARY": pa.dictionary(pa.int8(), pa.string()),
    "RUN_END_ENCODED": pa.run_end_encoded(pa.int16(), pa.int8()),
}
WITHOUT_COLUMN: Final[Mapping[str, pa.DataType]] = {
    "NA": pa.null(),  # whose values are nulls, which every type has
    "DURATION": pa.duration("ms"),
    "LIST_VIEW": pa.list_view(pa.int8()),  # whose slices Arrow casts to other lists
    "LARGE_LIST_VIEW": pa.large_list_view(pa.int8()),
    "INTERVAL_MONTH_DAY_NANO": pa.month_day_nano_interval(),
    "DENSE_UNION": pa.dense_union([pa.field("v", pa.int8())]),
    "SPARSE_UNION": pa.sparse_union([pa.field("v", pa.int8())]),
}
WITHOUT_CLASS: Final = {"INTERVAL_MONTHS", "INTERVAL_DAY_TIME"}  # which pyarrow cannot make


def test_every_type_of_arrow_and_of_ddl_has_a_kind_and_every_kind_its_rules() -> None:
    known = {name.removeprefix("Type_") for name in dir(pa.lib) if name.startswith("Type_")}
    assert known == EXAMPLES.keys() | WITHOUT_COLUMN.keys() | WITHOUT_CLASS
    assert {kind_of(type_) for type_ in WITHOUT_COLUMN.values()} == {ValueKind.OTHER}
    kinds = {kind_of(type_) for type_ in (*EXAMPLES.values(), pa.uuid())}
    assert kinds == set(DECLARED)
    assert TABLE.keys() == {(source, declared) for source in ValueKind for declared in DECLARED}
    assert all(rule.instead for rule in TABLE.values())
    declarable = {*ddl._SIMPLE.values(), *ddl._UNSIGNED.values()}
    assert declarable <= set(TARGETS)
    for type_ in WITHOUT_COLUMN.values():
        with pytest.raises(UnhashableType):
            check_hashable(pa.schema([("c", type_)]))


def test_every_format_is_read_here_with_every_kind_of_value_that_it_has() -> None:
    assert FORMATS.keys() == {*BY_NAME, "avro", "protobuf", "keys and headers of messages"}
    assert {name.partition(",")[0] for name in READERS} == FORMATS.keys()


@pytest.mark.parametrize("type_", WITHOUT_COLUMN.values(), ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_values_of_other_types_are_refused_and_nulls_accepted(
    type_: pa.DataType, target: pa.DataType
) -> None:
    field, formats = pa.field("c", target), TimeFormats(strings=ValueKind.TEXT)
    nulls = pa.chunked_array([pa.nulls(2, type_)])
    if type_ != pa.dense_union([pa.field("v", pa.int8())]) and type_ != pa.sparse_union(
        [pa.field("v", pa.int8())]
    ):
        assert convert_column(nulls, field, formats).null_count == 2
    if pa.types.is_duration(type_):
        with pytest.raises(InvalidInput, match=r"column c: .* is not a value of .*; no column has this type"):
            convert_column(pa.chunked_array([pa.array([1], type_)]), field, formats)


def test_fields_of_structs_go_by_name_and_their_nulls_are_not_values() -> None:
    inner = pa.StructArray.from_arrays([pa.array([1, 2**40]), pa.array(["x", "y"])], ["v", "other"])
    values = pa.StructArray.from_arrays(list(inner.flatten()), ["v", "other"], mask=pa.array([False, True]))
    target = pa.struct([("w", pa.string()), ("v", pa.int8())])
    found = convert_column(pa.chunked_array([values]), pa.field("c", target), TimeFormats())
    assert found.to_pylist() == [{"w": None, "v": 1}, None]
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["v", "v"])
    with pytest.raises(InvalidInput, match=r"column c.v: occurs more than once"):
        convert_column(pa.chunked_array([twice]), pa.field("c", target), TimeFormats())


def test_lists_of_any_layout_become_lists_and_a_fixed_size_is_checked() -> None:
    target = pa.field("c", pa.list_(pa.int64(), 2))
    for type_ in (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)):
        column = pa.chunked_array([pa.array([[9, 9], [1, 2], None, [3, 4]], type_).slice(1)])
        assert convert_column(column, target, TimeFormats()).to_pylist() == [[1, 2], None, [3, 4]]
    with pytest.raises(InvalidInput, match="column c: a list has not 2 elements"):
        convert_column(pa.chunked_array([pa.array([[1]], pa.list_(pa.int8()))]), target, TimeFormats())
    pairs = pa.chunked_array([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))])
    entry = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
    found = convert_column(pairs, pa.field("c", entry), TimeFormats())
    assert found.to_pylist() == [[{"key": "a", "value": 1}]]


@pytest.mark.parametrize("declared", [ValueKind.TIME, ValueKind.UUID])
def test_no_remedy_converts_by_sql_to_a_type_that_no_query_returns(declared: ValueKind) -> None:
    assert not [source for source in ValueKind if "preprocess" in TABLE[source, declared].instead]
