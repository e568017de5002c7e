"""Csv: where records and values begin and end, and bytes that are not UTF-8, in any text format."""

import bz2
import gzip
import io
import lzma
import re
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepGeoJson, ReadStepJson, ReadStepNdJson
from odf_ingest.prepare.plan import declared_schema
from odf_ingest.read import infer_records, read_file, read_inferred, read_records, split_file, suspects
from odf_ingest.read.csv_format.csv_parse import header_names, inferred_types, parse
from odf_ingest.read.csv_format.csv_records import BadQuote, Grammar, grammar_of
from odf_ingest.read.isolate_bad_records import isolate_bad_records

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


def rows(*values: bytes, **options: object) -> list[tuple[object, ...]]:
    table = read_records(ReadStepCsv(**options), values, SCHEMA)  # type: ignore[arg-type]
    return [
        (row["id"], row["name"], None if row["day"] is None else str(row["day"])) for row in table.to_pylist()
    ]


def test_one_message_is_one_line() -> None:
    assert rows(b"1,a,2020-01-01", b'2,"b,c",') == [(1, "a", "2020-01-01"), (2, "b,c", None)]


def test_a_message_may_carry_the_header_where_the_source_has_one() -> None:
    assert rows(b"id,name,day\n1,a,", b"2,b,", header=True) == [(1, "a", None), (2, "b", None)]


def test_columns_follow_the_header_of_each_message() -> None:
    found = rows(b'day,"id",name\n2020-01-01,1,a', b"2,b,", b"name,day,id\nc,,3\n", header=True)
    assert found == [(1, "a", "2020-01-01"), (2, "b", None), (3, "c", None)]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("id,nmae,day", "has unknown columns 'nmae' and lacks columns 'name'; the columns are id, name, day"),
        ("id,name,day,x, y", "has unknown columns 'x', ' y'; the columns"),
        ("name,id", "lacks columns 'day'; the columns"),
        ("id,name,id", "has duplicate columns: 'id'"),
        ("", "lacks columns"),
    ],
)
def test_unknown_and_missing_columns_of_a_header_are_listed(header: str, reason: str, tmp_path: Path) -> None:
    line = ",".join("1" * (header.count(",") + 1))
    if header:
        with pytest.raises(InvalidInput, match=f"^the header {reason}"):
            rows(f"{header}\n{line}".encode(), header=True)
    file = tmp_path / "data.csv"
    file.write_text(f"{header or 'a'}\n{line}\n")
    with pytest.raises(InvalidInput, match="^the header (has unknown columns 'a' and )?" + reason):
        read_file(ReadStepCsv(header=True), file, SCHEMA)


@pytest.mark.parametrize("text", [b"", b"\n", b" \r\n"])
def test_a_file_that_lacks_even_its_header_is_refused(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(text)
    for schema in (SCHEMA, None):
        with pytest.raises(InvalidInput, match="has no header"):
            read_file(ReadStepCsv(header=True), file, schema)
    assert len(read_file(ReadStepCsv(), file, SCHEMA)) == 0


def test_a_header_without_a_record_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is the header, without a record"):
        rows(b"1,a,", b"id,name,day", header=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"\na",x', ("\na", "x")),
        (b'"a\n",x', ("a\n", "x")),
        (b'"a\r\nb","\n"', ("a\r\nb", "\n")),
        (b'"","x"', ("", "x")),
        (b'5" pipe,6"', ('5" pipe', '6"')),
        (b'"a""b",x', ('a"b', "x")),
    ],
)
def test_a_message_is_read_in_the_same_way_with_and_without_header(text: bytes, expected: object) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    for header in (True, False):
        for some in ([text], [b"x,y", text, b"z,w"]):
            table = read_records(ReadStepCsv(header=header), some, schema)
            assert tuple(table.to_pylist()[len(some) // 2].values()) == expected


def test_a_quote_that_is_never_closed_swallows_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is never closed: '\"b,'"):
        rows(b'1,"b,')
    with pytest.raises(InvalidInput, match="is never closed"):
        rows(b'1,"b,', b'2,c"x,')
    file = tmp_path / "data.csv"
    file.write_bytes(b'id,name,day\n1,"a\nb",\n2,"c,\n3,d,\n')
    with pytest.raises(InvalidInput, match=r"^line 4: a quote is never closed"):
        read_file(ReadStepCsv(header=True), file, SCHEMA)


@pytest.mark.parametrize("value", [b'"a"b', b'"a"b"c', b'"" ', b'"a""b" "c"'])
def test_text_after_a_closing_quote_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidInput, match="text follows the closing quote: '"):
        rows(b"1," + value + b",")
    assert rows(b'1,"a""b",') == [(1, 'a"b', None)]


def test_separator_quote_escape_null_value_and_date_format_are_followed() -> None:
    found = rows(
        b"1;'a;\\'b';NA",
        b"NA;'';31.12.2020",
        separator=";",
        quote="'",
        escape="\\",
        null_value="NA",
        date_format="dd.MM.yyyy",
    )
    assert found == [(1, "a;'b", None), (None, "", "2020-12-31")]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "is empty"),
        (b"x,a,", "column id: 'x' is not a value of BIGINT"),
        (b"1,a", "has 2 values instead of 3 (id, name, day): 1,a"),
        (b"1,a,,", "has 4 values instead of 3 (id, name, day): 1,a,,"),
        (b"1,a,\n2,b,", "has 2 records instead of one"),
        (b'1,"a,', "a quote is never closed"),
        (b"1,\xff,", "is not UTF-8 text"),
        (b"1,a,soon", "column day: 'soon' is not a value of DATE"),
    ],
)
def test_a_bad_line_is_refused_alone_and_among_good_ones(bad: bytes, why: str) -> None:
    for messages in ((bad,), (b"1,a,", bad, b"2,b,")):
        with pytest.raises(InvalidInput, match=f"^{re.escape(why)}"):
            rows(*messages)


def test_a_message_has_one_record_after_its_header() -> None:
    with pytest.raises(InvalidInput, match=r"^has 2 records instead of one$"):
        rows(b"id,name,day\n1,a,\n2,b,", header=True)


def test_a_file_without_header_has_columns_by_position_and_its_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b"1,a,\n2,b,2020-01-01\n")
    assert read_file(ReadStepCsv(), file, SCHEMA).column("id").to_pylist() == [1, 2]
    file.write_bytes(b"1,a,\n2,b,2020-01-\n")
    with pytest.raises(InvalidInput, match=r"^line 2: column day: .*2020-01-"):
        read_file(ReadStepCsv(), file, SCHEMA)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x,a,", "column id: .*'x'"),
        ("1,a,soon", "column day: .*soon"),
        ("1.5,a,", "column id: '1.5' is not a value of BIGINT"),
        ("1,a", r"has 2 values instead of 3 \(id, name, day\)"),
    ],
)
def test_columns_are_named_and_not_counted(line: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"^{reason}"):
        rows(line.encode())
    file = tmp_path / "data.csv"
    file.write_text(f'name,id,day\n"q",1,\n{",".join([*line.split(",")[1::-1], *line.split(",")[2:]])}\n')
    with pytest.raises(InvalidInput, match=f"^line 3: {reason.replace('id, name', 'name, id')}"):
        read_file(ReadStepCsv(header=True), file, SCHEMA)


@pytest.mark.parametrize("schema", [SCHEMA, None])
@pytest.mark.parametrize("step", [ReadStepCsv(header=True), ReadStepCsv(header=True, infer_schema=True)])
def test_a_line_that_is_not_utf8_is_named(
    tmp_path: Path, step: ReadStepCsv, schema: pa.Schema | None
) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b'id,name,day\n1,"\n",\n1,\xff,\n')
    with pytest.raises(InvalidInput, match=r"^line 4: is not UTF-8 text"):
        read_file(step, file, schema)


def test_without_a_schema_columns_are_strings_unless_types_are_inferred(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b"a,b\n1,x\n")
    assert read_file(ReadStepCsv(header=True), file, None).to_pylist() == [{"a": "1", "b": "x"}]
    found = read_file(ReadStepCsv(header=True, infer_schema=True), file, None)
    assert found.to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize("header", [b"", b"day,id,amount\n"], ids=["no-header", "header"])
def test_bad_records_are_found_together_and_not_one_by_one(header: bytes) -> None:
    """Otherwise each bad row of a large file costs a dozen readings of its neighbours."""
    step = ReadStepCsv(header=bool(header), ddl_schema=("day DATE", "id BIGINT", "amount DECIMAL(4, 2)"))
    bad = [
        b"2024-13-01,1,2",
        b"2024-01-01,one,2",
        b"2024-01-01,1,2,3",
        b"2024-01-01,1,\xff",
        b'2024-01-01,1,"2',
    ]
    good = [b"2024-01-01,1e3,.5", b'"2024-01-01",-1,+2.50', b",,"]
    values = [header + one for one in (*bad, *good)]
    schema = declared_schema(step)
    assert sorted(suspects(step, values, schema)) == list(range(len(bad)))
    assert sorted(suspects(step, values[:2], schema)) == [0, 1]
    assert len(read_records(step, values[len(bad) :], schema)) == len(good)


def test_without_a_schema_each_message_needs_a_header() -> None:
    step = ReadStepCsv(header=True, infer_schema=True)
    schema = infer_records(step, [b"a,b\n1,x"], None)
    assert read_inferred(step, [b"a,b\n1,x", b"b,a\ny,2"], schema).to_pylist() == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    with pytest.raises(InvalidInput, match="has no header, and the source declares no schema"):
        read_inferred(step, [b"1,x"], schema)


def test_a_record_has_one_column_or_more() -> None:
    one = pa.schema([("id", pa.int64())])
    assert read_records(ReadStepCsv(), [b"1", b"2"], one).to_pylist() == [{"id": 1}, {"id": 2}]
    with pytest.raises(InvalidInput, match="has no columns"):
        parse(ReadStepCsv(), b"1", pa.schema([]))


@pytest.mark.parametrize("is_inferred", [False, True])
def test_a_header_has_strings_and_names_each_column_once(*, is_inferred: bool) -> None:
    step = ReadStepCsv(header=True, infer_schema=is_inferred)
    with pytest.raises(InvalidInput, match="is not UTF-8 text"):
        header_names(step, b"a,\xff")
    with pytest.raises(InvalidInput, match="the header has duplicate columns: 'a'"):
        inferred_types(step, header_names(step, b"a,b,a"), [b"1,2,3"])


def test_a_value_of_several_lines_is_whole_where_arrow_splits_a_large_file() -> None:
    block = 16 << 20
    row, value = b"x,1\n", b"\n" * 2000
    before = row * ((block - len(value) // 2) // len(row))
    assert len(before) < block < len(before + value)
    columns = pa.schema([("a", pa.string()), ("b", pa.int64())])
    table = parse(ReadStepCsv(), before + b'"' + value + b'",2\n' + row, columns)
    assert table.slice(len(before) // len(row)).to_pylist() == [
        {"a": value.decode(), "b": 2},
        {"a": "x", "b": 1},
    ]


def test_the_header_of_a_joined_file_is_no_record(tmp_path: Path) -> None:
    step, file = ReadStepCsv(header=True), tmp_path / "joined.csv"
    schema = pa.schema({"a": pa.string(), "b": pa.string()})
    file.write_bytes(b'a,b\n1,"x\na,b\n"\n\na,b\r\n2,"y a,b z"\n')
    with pytest.raises(InvalidInput, match=r"^line 6: is the header again, not a record$"):
        read_file(step, file, schema)
    rows = split_file(step, file.read_bytes())
    assert rows is not None
    outcome = isolate_bad_records(
        rows.messages(0, 3),
        lambda some: read_records(rows.step, some, schema),
        lambda some: suspects(step, some, schema),
    )
    assert outcome.bad == {1: "is the header again, not a record"}
    assert outcome.table is not None
    assert outcome.table.column("a").to_pylist() == ["1", "2"]


def test_a_single_column_may_have_its_name_as_a_value(tmp_path: Path) -> None:
    file = tmp_path / "words.csv"
    file.write_bytes(b"word\none\nword\n")
    assert read_file(ReadStepCsv(header=True), file, pa.schema({"word": pa.string()})).num_rows == 2


PLAIN = grammar_of(ReadStepCsv())
ESCAPED = grammar_of(ReadStepCsv(escape="\\", quote="'", separator=";"))
UNQUOTED = grammar_of(ReadStepCsv(quote=""))


@pytest.mark.parametrize(
    ("grammar", "record", "width"),
    [
        (PLAIN, b"", 1),
        (PLAIN, b"a,b", 2),
        (PLAIN, b'"a,b"', 1),
        (PLAIN, b'"a,b",c', 2),
        (PLAIN, b'"a"",",', 2),
        (PLAIN, b'"a\nb",c,"d,e"', 3),
        (PLAIN, b'a"b,c"', 2),
        (ESCAPED, b"'a;b';c", 2),
        (ESCAPED, b"'a\\';b';c", 2),
        (ESCAPED, b"a,b", 1),
        (UNQUOTED, b'"a,b"', 2),
    ],
)
def test_a_separator_in_quotes_separates_nothing(grammar: Grammar, record: bytes, width: int) -> None:
    assert grammar.width(record) == width
    assert grammar.end(record) == len(record)


@pytest.mark.parametrize(
    ("grammar", "text", "end", "is_line"),
    [
        (PLAIN, b"a,b\nc", 3, True),
        (PLAIN, b'"a\nb",c\nd', 7, False),
        (PLAIN, b'"a,b"\n"c"', 5, True),
        (PLAIN, b"a\r\nb", 1, False),
        (ESCAPED, b"'a\\'\n';b\nc", 8, False),
        (UNQUOTED, b'"a\nb"', 2, True),
    ],
)
def test_a_record_ends_with_its_line_unless_that_is_quoted(
    grammar: Grammar, text: bytes, end: int, is_line: bool
) -> None:
    assert grammar.end(text) == end
    assert grammar.is_record_a_line(text) == is_line


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (b'a\n"b', 2, "a quote is never closed: '\"b'"),
        (b'a",b\nc",d",e,"f', 2, "a quote is never closed: '\"f'"),
        (b'"a"b,c', 1, "text follows the closing quote: 'b,c'"),
        (b'a\n"b\nc"d\n', 2, r"text follows the closing quote, 1 line further down: 'd\\n'"),
        (b'1,"\n",2\n3,"\n\n"x,"y"', 3, "2 lines further down: 'x,"),
    ],
)
def test_a_quote_that_is_not_closed_as_it_should_be_is_named_by_the_line_where_it_opens(
    text: bytes, line: int, why: str
) -> None:
    with pytest.raises(BadQuote, match=why) as bad:
        PLAIN.require_closed(text)
    assert bad.value.line == line
    PLAIN.require_closed(text.replace(b'"', b""))


CITIES = pa.schema({"id": pa.int64(), "city": pa.string()})
TEXT = "id,by\u00f8\n1,Troms\u00f8\n"
STEPS = [ReadStepCsv(header=True), ReadStepCsv(), ReadStepNdJson(), ReadStepJson(), ReadStepGeoJson()]


def _zip() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", bytes(range(256)))
    return whole.getvalue()


def _parquet() -> bytes:
    whole = io.BytesIO()
    pq.write_table(pa.table({"id": [2**40 + 255], "city": ["Tromsø"]}), whole)
    return whole.getvalue()


KINDS = {
    "gzip": (gzip.compress(TEXT.encode()), "is compressed by gzip: .*Decompress"),
    "xz": (lzma.compress(TEXT.encode()), "is compressed by xz: .*Decompress"),
    "bzip2": (bz2.compress(TEXT.encode()), "is compressed by bzip2: .*Decompress"),
    "zstd": (pa.compress(TEXT.encode(), codec="zstd", asbytes=True), "is compressed by zstd: .*Decompress"),
    "zip": (_zip(), "is a ZIP archive, .*export the sheet as Csv"),
    "parquet": (_parquet(), "is Parquet: "),
    "utf-16": (TEXT.encode("utf-16"), "is UTF-16 text: declare `encoding: utf-16`"),
    "latin-1": (TEXT.encode("latin-1"), "is not UTF-8 text: .*`encoding`"),
}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize(("content", "reason"), KINDS.values(), ids=KINDS)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, step: ReadStep, content: bytes, reason: str) -> None:
    file = tmp_path / "data"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=reason):
        read_file(step, file, CITIES)
