"""Each option of a read step is followed exactly (docs/reference/manifests.md has the table)."""

import csv
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.read_options import require_options
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import read_batch, read_file, read_records

TEXTS = pa.schema([("a", pa.string()), ("b", pa.string())])
CELLS = st.text(st.sampled_from('ab1 \\",;|\t\n'))


def values(text: bytes, **options: Any) -> list[tuple[object, ...]]:
    """Return the rows of a Csv text, read as a file and line by line."""
    step = ReadStepCsv(**options)
    rows = [tuple(row.values()) for row in read_batch(step, text, TEXTS).to_pylist()]
    if not options.get("header"):
        lines = read_records(step, text.splitlines(), TEXTS).to_pylist()
        assert [tuple(row.values()) for row in lines] == rows
    return rows


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (rb'"a""b","\\"', {}, ('a"b', r"\\")),
        (rb'"\\files, 1","C:\old\"', {}, (r"\\files, 1", "C:\\old\\")),
        (rb'"a\"b",c', {"escape": "\\"}, ('a"b', "c")),
        (rb'"a""b",c', {"escape": "\\"}, ('a"b', "c")),
        (rb'"a\\",c', {"escape": "\\"}, ("a\\", "c")),
        (rb'"a\\\"b","c\d"', {"escape": "\\"}, ('a\\"b', "c\\d")),
        (rb'"\"",""""', {"escape": "\\"}, ('"', '"')),
        (rb"C:\dir\,a\b", {"escape": "\\"}, ("C:\\dir\\", "a\\b")),
        (rb'x"\"y","q"', {"escape": "\\"}, (r'x"\"y"', "q")),
        (rb'"C:\dir\",b', {"escape": ""}, ("C:\\dir\\", "b")),
        (rb'"C:\dir\",b', {"escape": '"'}, ("C:\\dir\\", "b")),
        (rb'"a^"b",^^', {"escape": "^"}, ('a"b', "^^")),
        (rb"'a\'b';'c'", {"quote": "'", "separator": ";", "escape": "\\"}, ("a'b", "c")),
        (b'"a,b"', {"quote": ""}, ('"a', 'b"')),
        (b'5" pipe,"', {"quote": ""}, ('5" pipe', '"')),
        (rb"a\,b", {"separator": "\\"}, ("a", ",b")),
        (b"a\tb", {"separator": "\t"}, ("a", "b")),
    ],
)
def test_quotes_and_escapes(text: bytes, options: dict[str, str], expected: tuple[str, str]) -> None:
    assert values(text, **options) == [expected]
    assert values(b"p,q\n".replace(b",", options.get("separator", ",").encode()) + text, **options)[1:] == [
        expected
    ]


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1))
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_what_a_writer_of_rfc_4180_wrote_is_read_back(separator: str, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\r\n").writerows(rows)
    table = read_batch(ReadStepCsv(separator=separator, null_value="NULL"), text.getvalue().encode(), TEXTS)
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


def test_an_escape_before_a_newline_and_a_separator_inside_quotes() -> None:
    step = ReadStepCsv(escape="\\")
    table = read_batch(step, b'"a\\\nb","c\\,d"\n"\\"\n,\\"",e\n', TEXTS)
    assert table.to_pylist() == [{"a": "a\\\nb", "b": "c\\,d"}, {"a": '"\n,"', "b": "e"}]


def test_only_the_null_value_is_null() -> None:
    assert values(b"NA,x\n") == [("NA", "x")]
    assert values(b',""\n') == [(None, "")]
    assert values(b'NA,"NA"\n"",\n', null_value="NA") == [(None, None), ("", "")]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "Zürich,é\n".encode("latin-1")),
        ("windows-1252", "€5,“x”\n".encode("cp1252")),
        ("utf-16", "Zürich,北京\n".encode("utf-16")),
        ("shift_jis", "東京,x\n".encode("shift_jis")),
        ("UTF-8", "Zürich,é\n".encode()),
    ],
)
def test_the_encoding_is_followed(encoding: str, text: bytes) -> None:
    expected = tuple(text.decode(encoding).strip().split(","))
    assert read_batch(ReadStepCsv(encoding=encoding), text, TEXTS).to_pylist() == [
        dict(zip("ab", expected, strict=True))
    ]


def test_a_byte_that_the_encoding_does_not_have_is_named_with_its_line() -> None:
    with pytest.raises(InvalidInput, match=r"^line 2: cannot be read as windows-1252: byte 0x81$"):
        read_batch(ReadStepCsv(encoding="windows-1252"), b"a,b\nc,\x81\n", TEXTS)
    with pytest.raises(InvalidInput, match=r"^cannot be read as ascii: byte 0xc3$"):
        read_records(ReadStepCsv(encoding="ascii"), ["é,b".encode()], TEXTS)


@pytest.mark.parametrize("name", ["rfc3339", "RFC3339", None])
def test_rfc_3339_is_the_default_format_by_name(name: str | None) -> None:
    schema = ddl_to_schema(["at TIMESTAMP(3)", "day DATE"])
    options: Any = {"timestamp_format": name, "date_format": name}
    expected = "2020-02-01 11:00:00.000Z"
    lines: list[tuple[ReadStep, bytes]] = [
        (ReadStepCsv(**options), b"2020-02-01T12:00:00+01:00,2020-02-01"),
        (ReadStepJson(**options), b'{"at": "2020-02-01T12:00:00+01:00", "day": "2020-02-01"}'),
        (ReadStepNdJson(**options), b'{"at": "2020-02-01T12:00:00+01:00", "day": "2020-02-01"}'),
    ]
    for step, line in lines:
        table = read_records(step, [line], schema)
        assert table.column("at").cast(pa.string()).to_pylist() == [expected]
        assert table.column("day").cast(pa.string()).to_pylist() == ["2020-02-01"]


def test_a_sub_path_leads_to_the_array(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"x": {"a": 0}, "result": {"items": [{"a": "1"}, {"a": "2"}]}}')
    step = ReadStepJson(sub_path="result.items")
    assert read_file(step, file, TEXTS).column("a").to_pylist() == ["1", "2"]
    with pytest.raises(InvalidInput, match="the document has no member 'other'"):
        read_file(ReadStepJson(sub_path="result.other"), file, TEXTS)


@pytest.mark.parametrize(
    ("step", "where", "complaint"),
    [
        (ReadStepCsv(separator=""), "separator", "is not one ASCII character"),
        (ReadStepCsv(separator="||"), "separator", "is not one ASCII character"),
        (ReadStepCsv(separator='"'), "quote", "is also the separator"),
        (ReadStepCsv(separator=";", quote=";"), "quote", "is also the separator"),
        (ReadStepCsv(escape=","), "escape", "is also the separator"),
        (ReadStepCsv(encoding="utf-80"), "encoding", "'utf-80' is not a known encoding"),
        (ReadStepCsv(encoding="base64"), "encoding", "is not a known encoding"),
        (ReadStepJson(encoding="unicode_escape"), "encoding", "is not an encoding of text"),
        (ReadStepNdJson(encoding="a\0b"), "encoding", "is not a known encoding"),
        (ReadStepCsv(date_format="yyyy-QQ"), "dateFormat", "the letter 'Q' is not supported"),
        (ReadStepCsv(timestamp_format="%Y-%Q"), "timestampFormat", "%Q is not supported"),
        (ReadStepJson(timestamp_format="%Y %"), "timestampFormat", "% is not supported"),
        (ReadStepNdJson(date_format="%d.%d.%Y"), "dateFormat", r"occurs twice \(%d\)"),
        (ReadStepNdJson(date_format="'day'"), "dateFormat", "has no part of a date or time"),
        (ReadStepJson(sub_path="a..b"), "subPath", r"'a\.\.b' is not of the form a\.b\.c"),
        (ReadStepJson(sub_path=""), "subPath", "is not of the form"),
    ],
)
def test_an_option_that_could_never_take_effect_is_refused(
    step: ReadStep, where: str, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint) as refused:
        require_options(step)
    assert refused.value.where == where


@pytest.mark.parametrize(
    "step",
    [
        ReadStepCsv(quote="", escape="", separator="\t", encoding="ISO-8859-1", null_value=""),
        ReadStepCsv(date_format="dd/MM/yyyy", timestamp_format="%F %T"),
        ReadStepCsv(encoding="utf-16"),
        ReadStepJson(encoding="utf-32"),
        ReadStepJson(sub_path="a.b c.d", timestamp_format="rfc3339"),
    ],
)
def test_an_option_that_can_take_effect_is_accepted(step: ReadStep) -> None:
    require_options(step)
