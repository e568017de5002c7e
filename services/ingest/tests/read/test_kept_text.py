"""Objects and arrays in declared columns of STRING arrive as their own text, byte for byte."""

import json
import random
from typing import Any, Final

import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepJson, ReadStepNdJson
from odf_ingest.read import read_batch, read_inferred, read_records, split_file, suspects
from odf_ingest.read.types.kinds import DecodedJson

COLUMNS: Final = ("id BIGINT", "any STRING", "s STRUCT<n: INT, t: STRING>", "l ARRAY<STRING>")
SCHEMA: Final = ddl_to_schema(COLUMNS)
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
    assert values(read_batch(NDJSON, b"\n".join(raw), SCHEMA)) == wanted
    assert values(read_records(NDJSON, raw, SCHEMA)) == wanted
    assert values(read_records(JSON, raw[:1], SCHEMA)) == wanted[:1]
    assert values(read_batch(JSON, b"[%s]" % b",\n".join(raw), SCHEMA)) == wanted


def test_texts_over_several_lines_keep_their_newlines() -> None:
    text = '{\n  "a": 1,\r\n\t"b": [\n]\n}'
    pretty = f'[\n{row(text)}\n,\n{{\n"id":\n2,\n"any": "x"\n}}]'.encode()
    assert [r["any"] for r in read_batch(JSON, pretty, SCHEMA).to_pylist()] == [text, "x"]
    assert read_records(NDJSON, [row(text).encode()], SCHEMA)["any"].to_pylist() == [text]
    records = split_file(JSON, pretty)
    assert records is not None
    assert read_records(records.step, records.messages(0, 2), SCHEMA)["any"].to_pylist() == [text, "x"]


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
        read_records(NDJSON, [row(value).encode()], SCHEMA)


def test_bad_records_are_found_among_those_with_texts() -> None:
    raw = [row("{ }"), row("[ ]", id_='"x"'), row("[1"), row('{"a":1,"a":2}'), row("[]")]
    found = suspects(NDJSON, [one.encode() for one in raw], SCHEMA)
    assert found.keys() == {1, 2, 3}
    with pytest.raises(InvalidInput, match="line 2: column id: 'x' is not a value of BIGINT"):
        read_batch(NDJSON, "\n".join(raw).encode(), SCHEMA)
    with pytest.raises(InvalidInput, match="column a: is duplicated"):
        read_records(NDJSON, [raw[3].encode()], SCHEMA)


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
    found = read_records(NDJSON, raw, SCHEMA)
    assert found["any"].to_pylist() == texts
    assert found["l"].to_pylist() == [[text, "x"] for text in texts]
    assert all(isinstance(json.loads(text), list) for text in texts)
