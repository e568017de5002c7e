"""Json and NdJson, and formats that replace that of the source."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from odf_testing.ingest_batches import commit_file

from odf_cli.user_input import with_read_options
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepCsv, ReadStepJson, ReadStepNdJson, ReadStepParquet
from odf_ingest.errors import UnsupportedMediaType
from odf_ingest.read import read_batch, read_file, read_records, split_file
from odf_ingest.read.arrow_ipc import ReadArrowIpc
from odf_ingest.read.input_format import InputFormat

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_a_file_is_an_array_of_objects(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('[{"id": 1, "name": "ä"},\n {"id": 2}]')
    assert read_file(ReadStepJson(), file, SCHEMA).to_pylist() == [
        {"id": 1, "name": "ä"},
        {"id": 2, "name": None},
    ]


def test_white_space_and_other_members_of_the_document_do_not_matter() -> None:
    step = ReadStepJson(sub_path="result.rows")
    document = b"""
    { "before" : { "rows" : [ { "id" : 7 } ] } ,
      "result" : { "other" : "]" , "rows" : [ { "id" : 1 } , {"id":2} ] } ,
      "after" : [ ] }
    """
    assert read_batch(step, document, SCHEMA).column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b'{"rows":[{"id":1} {"id":2}]}', "expected ',' at character 18"),
        (b'{"rows":[{"id":1},]}', "expected an array of objects"),
        (b'{"rows":[,{"id":1}]}', "expected an array of objects"),
        (b'{"rows":[{"id":1}],}', "Expecting value: line 1 column 20"),
        (b'{"rows":[{"id":1}]', "expected ',' at character 18"),
        (b'{"rows":[{"id":1}}', "expected ',' at character 17"),
        (b'{"rows":[{"id":1}]}]', "text after the document at character 19"),
        (b'{"rows":[{"id":1}]}\n{"rows":[]}', "at character 20; objects one after the other are NdJson"),
        (b'{"rows" [{"id":1}]}', "expected ':' at character 8"),
        (b'{"other":0 "rows":[{"id":1}]}', "expected ',' at character 11"),
        (b'{"rows":[{"id":1}],"rows":[{"id":2}]}', "has 'rows' twice"),
        (b'{"other":0,"rows":[{"id":1}],"other":1}', "has 'other' twice"),
        (b'{"rows":[{"id":1,"id":2}]}', "column id: is duplicated"),
        (b'{0:1,"rows":[{"id":1}]}', "expected a name at character 1"),
        (b'{"other":nought,"rows":[{"id":1}]}', "Expecting value: line 1 column 10"),
        (b'{"Rows":[{"id":1}]}', "has no member 'rows'"),
        (b'[{"rows":[{"id":1}]}]', "has no member 'rows'"),
        (b'{"rows":[1]}', "expected an array of objects"),
        (b'{"rows":null}', "expected an array of objects"),
    ],
)
def test_a_document_that_is_not_json_to_its_end_or_has_a_duplicate_key_is_refused(
    document: bytes, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_batch(ReadStepJson(sub_path="rows"), document, SCHEMA)


@pytest.mark.parametrize(("before", "line"), [("", 4), ("\n", 5)])
def test_the_bad_record_of_a_file_is_named(tmp_path: Path, before: str, line: int) -> None:
    file = tmp_path / "data.json"
    file.write_text(before + '{"rows":\n [{"id": 1}, {"id":\n 2}, {"id": 3},\n {"id": "x"}]}')
    with pytest.raises(InvalidInput, match=rf"^line {line}, record 4: "):
        read_file(ReadStepJson(sub_path="rows"), file, SCHEMA)


def test_a_message_is_an_object_or_an_array_of_one() -> None:
    table = read_records(ReadStepJson(), [b'{"id":1}', b'[{"id":2}]'], SCHEMA)
    assert table.column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "expected an array of objects"),
        (b"[]", "has 0 records instead of one"),
        (b"1", "expected an array of objects"),
        (b"[1]", "expected an array of objects"),
        (b'[{"id":1},{"id":2}]', "has 2 records instead of one"),
        (b"{", "expected one JSON object"),
        (b'{"id":"x"}', "changed from number to string in row 1"),
    ],
)
def test_a_message_that_is_not_one_record_is_refused(bad: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_records(ReadStepJson(), [b'{"id":1}', bad], SCHEMA)


def test_each_record_of_a_file_is_a_message_that_the_same_step_reads() -> None:
    step = ReadStepJson(sub_path="data.rows", encoding="utf-16")
    found = split_file(step, '{"data":{"rows":[{"id":1,"name":"a"},{"id":2,"name":"ü"}]}}'.encode("utf-16"))
    assert found is not None
    assert found.step == ReadStepJson(sub_path="data.rows")
    assert [json.loads(value) for value in found.values] == [
        {"data": {"rows": {"id": 1, "name": "a"}}},
        {"data": {"rows": {"id": 2, "name": "ü"}}},
    ]
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "ü"}]
    assert read_records(found.step, found.values, SCHEMA).to_pylist() == rows


TIMESTAMP = pa.timestamp("ms", "UTC")
LINE_SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("at", TIMESTAMP), ("day", pa.date32())])
STEP = ReadStepNdJson()


def rows(*values: bytes, step: ReadStepNdJson = STEP) -> list[dict[str, object]]:
    found: list[dict[str, object]] = read_records(step, values, LINE_SCHEMA).to_pylist()
    return found


def test_columns_that_are_not_declared_are_skipped_and_missing_ones_are_null() -> None:
    assert rows(b'{"id":1,"other":{"deep":[1]}}') == [{"id": 1, "city": None, "at": None, "day": None}]


def test_one_column_is_enough() -> None:
    schema = pa.schema([("id", pa.int64())])
    assert read_records(STEP, [b'{"id":1}', b'{"id":2}'], schema).to_pylist() == [{"id": 1}, {"id": 2}]
    with pytest.raises(InvalidInput, match="has no column with a value"):
        read_records(STEP, [b'{"id":1}'], pa.schema([]))


def test_an_object_may_be_spread_over_lines_and_wrapped_in_white_space() -> None:
    assert [row["id"] for row in rows(b'{\n "id": 1\n}\n', b'  {"id":2}\r\n')] == [1, 2]


NO_OBJECT = "expected one JSON object"

BAD_LINES = {
    b"junk": NO_OBJECT,
    b"null": NO_OBJECT,
    b"[1]": NO_OBJECT,
    b'{"id":1': NO_OBJECT,
    b'{"id":1}{"id":2}': "Extra data: line 1|has more than one JSON object",
    b'{"id":1} x': NO_OBJECT,
    b'[{"id":1}]': "expected one JSON object; an array of objects is Json",
    b'{"id":1},': NO_OBJECT,
    b'{"id":"one"}': "'one' is not a value of BIGINT|changed from number to string in row 1",
    b'{"id":1.5}': "1.5 is not a value of BIGINT|couldn't parse:1.5",
    b'{"id":99999999999999999999}': "9 is not a value of BIGINT|couldn't parse:9",
    b'{"city":7}': "7 is not a value of STRING|changed from string to number in row 1",
    b'{"city":"\xff"}': "is not UTF-8 text",
    b'{"other":"\xff"}': "is not UTF-8 text",
    b'{"id":1,"id":2}': "column id: is duplicated|was specified twice in row 1",
    b'{"at":"soon"}': "'soon' is not a value of TIMESTAMP",
    b'{"day":"2020-02-30"}': "'2020-02-30' is not a value of DATE",
    b'{"city":"line\nfeed"}': "Invalid control character at",
}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [(b"", NO_OBJECT), (b" ", NO_OBJECT), (b'{"id":1}\n{"id":2}', "Extra data: line 2"), *BAD_LINES.items()],
)
def test_a_bad_message_is_refused_alone_and_among_good_ones(bad: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        rows(bad)
    with pytest.raises(InvalidInput, match=reason):
        rows(b'{"id":1}', bad, b'{"id":3}')


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_file_with_a_bad_line_is_refused(bad: bytes) -> None:
    for content in (bad, b'{"id":1}\n' + bad + b'\n{"id":3}\n'):
        with pytest.raises(InvalidInput, match=r"^line \d: "):
            read_batch(STEP, content, LINE_SCHEMA)


def test_an_empty_message_does_not_hide_a_double_one() -> None:
    with pytest.raises(InvalidInput, match="expected one JSON object"):
        rows(b'{"id":1}', b"", b'{"id":2}{"id":3}')


def test_timestamps_and_dates_follow_the_given_formats() -> None:
    step = ReadStepNdJson(timestamp_format="dd/MM/yyyy HH:mm", date_format="%d.%m.%Y")
    (row,) = rows(b'{"at":"31/01/2020 07:05","day":"1.2.2020"}', step=step)
    assert str(row["at"]) == "2020-01-31 07:05:00+00:00"
    assert str(row["day"]) == "2020-02-01"


def test_a_file_has_one_object_per_line_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'\xef\xbb\xbf{"id":1}\n\n{"id":2}\n')
    assert read_file(STEP, file, LINE_SCHEMA).column("id").to_pylist() == [1, 2]


def test_the_first_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(
        b"".join(b'{"id":%d}\n' % number for number in range(1000)) + b'{"id":"x"}\n{"id":"y"}\n'
    )
    with pytest.raises(InvalidInput, match=r"^line 1001: "):
        read_file(STEP, file, LINE_SCHEMA)


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"\n \n")
    assert len(read_file(STEP, file, LINE_SCHEMA)) == 0


def test_without_a_schema_types_are_found_in_the_data() -> None:
    table = read_batch(STEP, b'{"a":1,"b":"x"}\n{"a":2}', None)
    assert table.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_another_encoding_is_read_as_such() -> None:
    (row,) = rows('{"city":"Köln"}'.encode("latin-1"), step=ReadStepNdJson(encoding="latin-1"))
    assert row["city"] == "Köln"


def test_a_message_longer_than_a_block_is_read() -> None:
    (row,) = rows(b'{"id":1,"city":"' + b"x" * 6_000_000 + b'"}')
    assert len(str(row["city"])) == 6_000_000


COLUMNS = ("id BIGINT", "v STRING")
OWN = ReadStepNdJson(ddl_schema=COLUMNS, timestamp_format="yyyy")


def step(text: str, own: Any = OWN) -> Any:
    return InputFormat.parse(text).step(own)


@pytest.mark.parametrize("text", ["", "application/octet-stream", "ndjson", "application/x-ndjson"])
def test_the_sources_own_format_keeps_the_sources_options(text: str) -> None:
    assert step(text) == OWN


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("csv", ReadStepCsv),
        ("text/csv; charset=utf-8", ReadStepCsv),
        ("application/json", ReadStepJson),
        ("application/vnd.apache.parquet", ReadStepParquet),
        ("application/vnd.apache.arrow.stream", ReadArrowIpc),
        ("ARROW", ReadArrowIpc),
    ],
)
def test_another_format_has_the_sources_columns_and_no_option_of_it(text: str, kind: type) -> None:
    found = step(text)
    assert found.ddl_schema == COLUMNS
    assert isinstance(found, kind)
    assert getattr(found, "timestamp_format", None) is None


def test_arrow_for_a_parquet_source_is_not_read_as_parquet() -> None:
    assert type(step("arrow", ReadStepParquet())) is ReadArrowIpc


def test_csv_of_another_source_has_a_header_unless_it_is_denied() -> None:
    assert step("csv").header
    assert step("text/csv; header=absent").header is False
    own = ReadStepCsv(separator=";")
    assert step("csv", own) == own
    assert step("text/csv; header=present", own) == ReadStepCsv(separator=";", header=True)


def test_the_charset_of_a_media_type_is_the_encoding() -> None:
    assert step("text/csv; charset=ISO-8859-1").encoding == "iso-8859-1"
    with pytest.raises(InvalidInput, match="option encoding: the format does not have it; it has none"):
        step("application/parquet; charset=latin1")


@given(value=st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_options_are_parameters_of_the_format_whatever_they_contain(value: str) -> None:
    text = with_read_options("csv", [("nullValue", value), ("HEADER", "false")])
    expected = replace(step("csv"), header=False, null_value=value)
    assert step(text) == expected
    assert step(text.replace("csv", "text/csv", 1)) == expected


def test_options_change_those_of_the_source_in_its_own_format() -> None:
    own = ReadStepCsv(separator=";", null_value="NA", ddl_schema=COLUMNS)
    text = with_read_options("", [("separator", "tab"), ("escape", "\\"), ("quote", "'")])
    assert step(text, own) == replace(own, separator="\t", escape="\\", quote="'")
    assert step('application/octet-stream; separator="|"', own) == replace(own, separator="|")
    assert step("json; subPath=a.b; timestampformat=epochMillis") == ReadStepJson(
        ddl_schema=COLUMNS, sub_path="a.b", timestamp_format="epochMillis"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("text/csv; seperator=;", "option seperator: the format does not have it; did you mean separator"),
        ("csv; profile=x", "option profile: .* it has separator, encoding, quote, escape, header"),
        ("ndjson; separator=x", "option separator: .* it has dateFormat, encoding, timestampFormat"),
        ("text/csv; separator=||", "separator: '||' is not one ASCII character"),
        ("csv; header=maybe", "option header: expected true or false, got 'maybe'"),
        ("csv; schema=x", "option schema: the format does not have it"),
        ('text/csv; separator=";', "cannot be read at '\";'"),
        ("csv; timestampFormat=yy", "timestampFormat: .* write strftime's %y"),
    ],
)
def test_an_option_that_cannot_be_obeyed_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why) if "||" in why else why):
        step(text)


def test_other_parameters_of_a_media_type_are_ignored() -> None:
    assert step("text/csv; profile=x; boundary=; ;") == step("csv")


def test_unknown_formats_are_refused_with_those_that_are_read() -> None:
    with pytest.raises(InvalidInput, match=r"unknown input format 'xml'; choose from arrow, csv, .*parquet"):
        InputFormat.parse("xml")
    with pytest.raises(UnsupportedMediaType, match="'application/xml'") as caught:
        InputFormat.parse("application/xml")
    assert "text/csv" in caught.value.advice()


def test_a_file_in_another_format_is_committed_by_its_columns_names(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    csv = InputFormat.parse("csv")
    assert commit_file(bench, tmp_path / "batch", "v,id\na,1\nb,2\n", format=csv).count == 2
    assert bench.values("id", "v") == [(1, "a"), (2, "b")]


def test_types_of_csv_for_a_source_without_a_schema_are_inferred(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepNdJson())
    for number, (text, format_) in enumerate([('{"id": 1}\n', ""), ("id,v\n2,x\n", "csv")]):
        commit_file(bench, tmp_path / "batch", text, str(number), format=InputFormat.parse(format_))
    assert bench.values("id", "v") == [(1, None), (2, "x")]
