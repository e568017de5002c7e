"""An odd value is a record, or is rejected with a reason that names it; objects in columns of STRING keep their text."""

import json
import random
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import infer_records, read_batch, read_inferred, read_records, split_file, suspects
from odf_ingest.read.csv_format.csv_parse import misfits
from odf_ingest.read.csv_format.csv_records import grammar_of
from odf_ingest.read.encoding import BOM
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.json_formats.json_lines import misfits as json_misfits
from odf_ingest.read.types.kinds import DecodedJson, TimeFormats

from .odd_values import JSON_STEPS, NESTED, OPTIONS, STEPS, TYPES, declared, messages_of, odd_messages


def rows_and_reasons(
    read: Callable[[Sequence[bytes]], pa.Table], faults: Any, some: Sequence[bytes]
) -> list[Any]:
    """Return for each value its record, as bytes, or the reason why it was rejected."""
    isolated = isolate_bad_records(some, read, faults, chunk=8)
    outcomes: list[Any] = [None] * len(some)
    for place, reason in isolated.bad.items():
        outcomes[place] = reason
    rows = [] if isolated.table is None else isolated.table.to_batches()
    shown = [
        tuple(column.slice(row, 1).to_string() for column in one.columns)
        for one in rows
        for row in range(len(one))
    ]
    for place, row in zip(isolated.kept.tolist(), shown, strict=True):
        outcomes[place] = row
    return outcomes


@given(data=st.data())
@pytest.mark.parametrize("step", [*JSON_STEPS, *(ReadStepCsv(**some) for some in OPTIONS)])  # type: ignore[arg-type]
def test_the_result_of_a_message_does_not_depend_on_adjacent_ones(
    step: ReadStep, data: st.DataObject
) -> None:
    types = TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED]
    schema = declared(step, data.draw(st.sampled_from(types)))
    some = data.draw(st.lists(odd_messages(step), min_size=2, max_size=12))

    def read(values: Sequence[bytes]) -> pa.Table:
        return read_records(step, values, schema)

    def faults(values: Sequence[bytes]) -> Any:
        return suspects(step, values, schema)

    alone = [rows_and_reasons(read, lambda _: {}, [one])[0] for one in some]
    assert rows_and_reasons(read, faults, some) == alone


@given(data=st.data())
@pytest.mark.parametrize("step", [*STEPS, ReadStepCsv(infer_schema=True), ReadStepCsv(header=True)])
def test_inferred_columns_hold_for_each_message_alone(step: ReadStep, data: st.DataObject) -> None:
    some = data.draw(st.lists(odd_messages(step), min_size=1, max_size=12))
    if isinstance(step, ReadStepCsv) and step.header:
        some = [b"n,c\n" + one for one in some]
    schema = infer_records(step, some, None)

    def read(values: Sequence[bytes]) -> pa.Table:
        return read_inferred(step, values, schema)

    alone = [rows_and_reasons(read, lambda _: {}, [one])[0] for one in some]
    assert rows_and_reasons(read, lambda values: suspects(step, values, schema), some) == alone
    again = infer_records(step, some, schema)
    assert again.equals(schema)


@pytest.mark.parametrize("step", JSON_STEPS)
def test_without_any_column_each_message_is_refused_for_its_own_fault(step: ReadStep) -> None:
    some = [b'{"c":null}', *[b'{"c":nan}'] * 7, b'null{"c":0}', b"{}", b'{"c":1,"c":1}']
    schema = infer_records(step, some[:-1], None)
    assert len(schema) == 0
    assert rows_and_reasons(
        partial(read_inferred, step, schema=schema), partial(suspects, step, schema=schema), some
    ) == [
        "has no column with a value",
        *["is not JSON: Expecting value: line 1 column 6 (char 5)"] * 7,
        reason_alone(step, b'null{"c":0}', schema),
        "has no column with a value",
        "column c: is duplicated",
    ]


def reason_alone(step: ReadStep, one: bytes, schema: pa.Schema) -> str:
    with pytest.raises(InvalidInput) as refused:
        read_inferred(step, [one], schema)
    return str(refused.value)


@given(data=st.data())
@pytest.mark.parametrize("step", [ReadStepNdJson(), *(ReadStepCsv(**some) for some in OPTIONS)])  # type: ignore[arg-type]
def test_a_file_has_the_records_of_its_lines_or_is_refused_for_one_of_them(
    step: ReadStep, data: st.DataObject
) -> None:
    types = TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED]
    schema = declared(step, data.draw(st.sampled_from(types)))
    lines = data.draw(st.lists(odd_messages(step).filter(partial(is_line, step)), min_size=1, max_size=8))
    alone = [table_or_reason(partial(read_records, step, [line], schema)) for line in lines]
    outcome = table_or_reason(partial(read_batch, step, b"\n".join(lines), schema))
    reasons = [f"line {number}: {one}" for number, one in enumerate(alone, 1) if isinstance(one, str)]
    if reasons:
        assert outcome in reasons
    else:
        assert isinstance(outcome, pa.Table)
        assert outcome.to_string() == pa.concat_tables(alone).combine_chunks().to_string()


def is_line(step: ReadStep, text: bytes) -> bool:
    """Return whether a message is one line of a file."""
    if text.strip() != text or not text or set(b"\n\r").intersection(text) or text.startswith(BOM_UTF8):
        return False
    try:
        return not isinstance(step, ReadStepCsv) or len(grammar_of(step).split(text)) == 1
    except InvalidInput:
        return False


def table_or_reason(read: Callable[[], pa.Table]) -> pa.Table | str:
    try:
        return read()
    except InvalidInput as error:
        return str(error)


@pytest.mark.parametrize(
    ("step", "type_"),
    [
        (step, type_)
        for step in STEPS
        for type_ in (TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED])
    ],
)
def test_an_odd_message_is_a_record_or_is_rejected_for_a_reason(step: ReadStep, type_: str) -> None:
    schema = declared(step, type_)
    for message in messages_of(step):
        outcome = table_or_reason(partial(read_records, step, [message], schema))
        assert outcome
        if isinstance(outcome, pa.Table):
            outcome.validate(full=True)
            assert len(outcome) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_file_or_whole_batch_of_odd_values_is_read_or_refused(step: ReadStep) -> None:
    for message in messages_of(step):
        for text in (message, b"[%s]" % message, message + b"\n" + message):
            for schema in (declared(step, "DOUBLE"), declared(step, "BIGINT"), None):
                outcome = table_or_reason(partial(read_batch, step, text, schema))
                assert isinstance(outcome, pa.Table) or outcome


GOOD = {
    "i": 1,
    "d": 1.5,
    "n": "1.25",
    "t": "2020-01-01T00:00:00Z",
    "day": "2020-01-01",
    "b": True,
    "tm": "10:00",
    "u": "123e4567-e89b-12d3-a456-426614174000",
}
BAD_TYPES = {
    "i": "INT",
    "d": "DOUBLE",
    "n": "DECIMAL(5, 2)",
    "t": "TIMESTAMP(3)",
    "day": "DATE",
    "b": "BOOLEAN",
    "tm": "TIME",
    "u": "UUID",
}
SCHEMA = ddl_to_schema([f"{name} {type_}" for name, type_ in BAD_TYPES.items()])
EXPECTED = {name: f"is not a value of {type_}" for name, type_ in BAD_TYPES.items()}
EXPECTED |= {"tm": "is not a time of day, such as 23:59:59.999", "u": "is not a UUID, such as 123e4567"}
LONG = "it's \x07\x1b[31m 北京 " + "z" * 5000


def csv_line(row: dict[str, object]) -> bytes:
    values = (str(value).lower() if isinstance(value, bool) else str(value) for value in row.values())
    return ",".join(f'"{value}"' for value in values).encode()


@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("bad", ["soon", LONG])
@pytest.mark.parametrize("step", [ReadStepCsv(), ReadStepNdJson(), ReadStepJson()])
def test_a_value_that_does_not_fit_is_named(step: ReadStep, column: str, bad: str) -> None:
    rows = [GOOD, GOOD, {**GOOD, column: bad}, GOOD]
    written = [csv_line(row) if isinstance(step, ReadStepCsv) else json.dumps(row).encode() for row in rows]
    file = b"[" + b",".join(written) + b"]" if isinstance(step, ReadStepJson) else b"\n".join(written)
    with pytest.raises(InvalidInput) as refused:
        read_batch(step, file, SCHEMA)
    place = "line 1, record 3" if isinstance(step, ReadStepJson) else "line 3"
    quoted = repr(bad) if len(repr(bad)) <= 80 else f"{repr(bad)[:80]}…"
    assert str(refused.value).startswith(f"{place}: column {column}: {quoted} {EXPECTED[column]}")
    with pytest.raises(InvalidInput) as alone:
        read_records(step, [written[2]], SCHEMA)
    assert f"{place}: {alone.value}" == str(refused.value)


def test_rows_of_csv_that_do_not_fit_are_found_together() -> None:
    """Trying each of them alone is slow; a boolean is the only type whose bad values are not found."""
    columns = [column for column in GOOD if column != "b"]
    schema = ddl_to_schema([f"{column} {BAD_TYPES[column]}" for column in columns])
    good = {column: GOOD[column] for column in columns}
    bad = [csv_line({**good, column: "soon"}) for column in columns]
    bad += [csv_line({**good, "more": 1}), b'"\xff"' + b",1" * (len(columns) - 1)]
    rows = [row for one in bad for row in (csv_line(good), one)]

    assert misfits(ReadStepCsv(), rows, schema) == set(range(1, len(rows), 2))


def test_rows_of_csv_without_a_number_and_empty_rows_hide_no_others() -> None:
    schema = ddl_to_schema(["a INT", "b DOUBLE"])
    assert misfits(ReadStepCsv(), [b"1,", b",2", b",", b"x,", b"1"], schema) == {3, 4}
    alone = ddl_to_schema(["a INT"])
    assert 1 not in misfits(ReadStepCsv(), [b"", b"1", b"x"], alone)
    assert misfits(ReadStepCsv(), [b"1,2", b"3,4"], alone) == {0, 1}


@pytest.mark.parametrize("nested", ["ARRAY<INT>", "STRUCT<x INT>"])
def test_a_nested_column_is_refused_in_csv_with_its_line(nested: str) -> None:
    schema = ddl_to_schema(["a INT", f"b {nested}"])
    with pytest.raises(InvalidInput, match=r"^line 1: CSV conversion to .* is not supported$"):
        read_batch(ReadStepCsv(), b"1,2\n3,4\n", schema)
    assert misfits(ReadStepCsv(), [b"1,2", b"x,2"], schema) == {1}


def test_records_of_json_that_do_not_fit_are_found_together_with_separate_reasons() -> None:
    good = json.dumps(GOOD).encode()
    named = {
        json.dumps({**GOOD, column: "soon"}).encode(): f"column {column}: 'soon' {EXPECTED[column]}"
        for column in GOOD
    }
    named[b"{}"] = "has none of the columns"
    unnamed = [
        b"junk",
        b"[1]",
        good + good,
        good.replace(b"true", b"tru"),
        good.replace(b'"i"', b'"d"'),  # twice
        b'{"i":1,"x":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"i":1,"x":"\\ud800"}',
        b'{"i":1,"x":"\xff"}',
    ]
    rows = [row for bad in (*named, *unnamed) for row in (good, bad)] + [BOM + good]

    found = json_misfits(rows, SCHEMA, TimeFormats())

    assert found.keys() == set(range(1, len(rows) - 1, 2))
    for row, expected in enumerate(named.values()):
        assert str(found[2 * row + 1]).startswith(expected)
    assert [found[2 * row + 1] for row in range(len(named), len(named) + len(unnamed))] == [None] * len(
        unnamed
    )
    assert json_misfits(rows, None, TimeFormats()) == dict.fromkeys(range(len(rows)))


def test_a_line_with_too_many_values_is_short_and_printable() -> None:
    line = b"1,2,\x1b[31m" + b"z" * 5000
    with pytest.raises(
        InvalidInput, match=r"^line 1: has 3 values instead of 2 \(a, b\): 1,2,\\x1b\[31mz"
    ) as refused:
        read_batch(ReadStepCsv(), line, ddl_to_schema(["a INT", "b INT"]))
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("type_", "fits", "too_large"),
    [
        ("TINYINT", "-128", "-129"),
        ("INT", "2147483647", "2147483648"),
        ("INT UNSIGNED", "4294967295", "4294967296"),
        ("BIGINT", "-9223372036854775808", "9223372036854775808"),
        ("DECIMAL(4, 2)", "-99.99", "100.00"),
        ("FLOAT", "3.4e38", "3.5e38"),
    ],
)
@pytest.mark.parametrize("step", [ReadStepCsv(), ReadStepNdJson()])
def test_a_number_that_is_too_large_for_its_column_names_the_ways_that_exist(
    step: ReadStep, type_: str, fits: str, too_large: str
) -> None:
    schema = ddl_to_schema([f"n {type_}"])

    def read(value: str) -> None:
        line = f'"{value}"' if isinstance(step, ReadStepCsv) else f'{{"n": {value}}}'
        read_records(step, [line.encode()], schema)

    read(fits)
    with pytest.raises(
        InvalidInput, match=r"it is too large; a column keeps its type.* new column .* new dataset"
    ):
        read(too_large)
    with pytest.raises(InvalidInput) as other:
        read('"soon"' if isinstance(step, ReadStepNdJson) else "soon")
    assert "too large" not in str(other.value)


COLUMNS: Final = ("id BIGINT", "any STRING", "s STRUCT<n: INT, t: STRING>", "l ARRAY<STRING>")
KEPT_SCHEMA: Final = ddl_to_schema(COLUMNS)
NDJSON: Final = ReadStepNdJson(ddl_schema=COLUMNS)
JSON: Final = ReadStepJson(ddl_schema=COLUMNS)
ODD: Final = '{ "a" :1.50, "b":[1e3,-0.0,"\\u00e4\\ud83d ] } \\"",{}],\t"ä":NaN}'


def row(any_: str, *, id_: str = "1", inner: str = "null", items: str = "null") -> str:
    return f'{{"other": {{"any": [1e3]}}, "id": {id_}, "any": {any_},"s": {{"t":{inner}}} , "l" :{items}}}'


def values(table: pa.Table) -> list[tuple[Any, ...]]:
    return [(r["id"], r["any"], r["s"]["t"], r["l"]) for r in table.to_pylist()]


def test_texts_at_any_depth_are_those_of_the_source_among_strings_and_nulls() -> None:
    rows = [
        row(ODD, inner="[ ]", items=f'[{ODD},"x",null,[1 ,2]]'),
        row('"{}"', inner='"plain"', items="[]"),
        row("null"),
    ]
    wanted = [(1, ODD, "[ ]", [ODD, "x", None, "[1 ,2]"]), (1, "{}", "plain", []), (1, None, None, None)]
    raw = [one.encode() for one in rows]
    assert values(read_batch(NDJSON, b"\n".join(raw), KEPT_SCHEMA)) == wanted
    assert values(read_records(NDJSON, raw, KEPT_SCHEMA)) == wanted
    assert values(read_records(JSON, raw[:1], KEPT_SCHEMA)) == wanted[:1]
    assert values(read_batch(JSON, b"[%s]" % b",\n".join(raw), KEPT_SCHEMA)) == wanted


def test_texts_over_several_lines_keep_their_newlines() -> None:
    text = '{\n  "a": 1,\r\n\t"b": [\n]\n}'
    pretty = f'[\n{row(text)}\n,\n{{\n"id":\n2,\n"any": "x"\n}}]'.encode()
    assert [r["any"] for r in read_batch(JSON, pretty, KEPT_SCHEMA).to_pylist()] == [text, "x"]
    assert read_records(NDJSON, [row(text).encode()], KEPT_SCHEMA)["any"].to_pylist() == [text]
    records = split_file(JSON, pretty)
    assert records is not None
    assert read_records(records.step, records.messages(0, 2), KEPT_SCHEMA)["any"].to_pylist() == [text, "x"]


@pytest.mark.parametrize("id_", ["1e3", "1000.0"])
def test_numbers_elsewhere_are_rewritten_and_those_in_the_text_are_not(id_: str) -> None:
    schema = ddl_to_schema([*COLUMNS, "wide DECIMAL(38, 2)"])
    raw = row(ODD, id_=id_).encode()
    for one in (raw, raw[:-1] + b',"wide":1e2}'):
        found = read_records(NDJSON, [one, row('"x"').encode()], schema)
        assert [(r["id"], r["any"]) for r in found.to_pylist()] == [(1000, ODD), (1, "x")]


@pytest.mark.parametrize("value", ["1", "true", "1.5"])
def test_numbers_and_booleans_are_no_text(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"column any: .* is not a value of STRING"):
        read_records(NDJSON, [row(value).encode()], KEPT_SCHEMA)


def test_bad_records_are_found_among_those_with_texts() -> None:
    raw = [row("{ }"), row("[ ]", id_='"x"'), row("[1"), row('{"a":1,"a":2}'), row("[]")]
    found = suspects(NDJSON, [one.encode() for one in raw], KEPT_SCHEMA)
    assert found.keys() == {1, 2, 3}
    with pytest.raises(InvalidInput, match="line 2: column id: 'x' is not a value of BIGINT"):
        read_batch(NDJSON, "\n".join(raw).encode(), KEPT_SCHEMA)
    with pytest.raises(InvalidInput, match="column a: is duplicated"):
        read_records(NDJSON, [raw[3].encode()], KEPT_SCHEMA)


def test_an_object_in_an_inferred_column_or_in_a_decoded_message_is_refused() -> None:
    raw = [b'{"any": {"a": 1}}']
    schema = pa.schema([("any", pa.string())])
    why = r"column any: an object is not a value of STRING; declare STRUCT<…>, or, for a source of Json"
    with pytest.raises(InvalidInput, match=why):
        read_inferred(ReadStepNdJson(), raw, schema)
    with pytest.raises(InvalidInput, match=why):
        read_records(DecodedJson(ddl_schema=("any STRING",)), raw, schema)


def a_text(source: random.Random, depth: int = 3) -> str:
    """Return JSON with white space anywhere."""
    space = source.choice(["", " ", "\t", " \r"])
    if depth == 0 or source.random() < 0.3:
        return space + source.choice(
            ['"}]"', '"\\\\"', '"{\\""', "1E+2", "0.10", "null", "true", "{}", "[ ]"]
        )
    inner = [a_text(source, depth - 1) for _ in range(source.randrange(3))]
    if source.random() < 0.5:
        return f"{space}[{','.join(inner)}{space}]"
    return "{" + ",".join(f'"k{n}"{space}:{one}' for n, one in enumerate(inner)) + space + "}"


def test_random_texts_arrive_byte_for_byte() -> None:
    source = random.Random(7)
    texts = [f"[{a_text(source)}]" for _ in range(2000)]
    raw = [f'{{"any" : {text} ,"l":[{text},"x"]}}'.encode() for text in texts]
    found = read_records(NDJSON, raw, KEPT_SCHEMA)
    assert found["any"].to_pylist() == texts
    assert found["l"].to_pylist() == [[text, "x"] for text in texts]
    assert all(isinstance(json.loads(text), list) for text in texts)
