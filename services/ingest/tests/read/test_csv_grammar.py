"""Where records and values of CSV begin and end, by the options of its step."""

import pytest

from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read.csv_format.csv_records import BadQuote, Grammar, grammar_of

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


@pytest.mark.parametrize(
    ("text", "doubled"),
    [
        (b"'a\\'b';c", b"'a''b';c"),
        (b"'a\\\\';c", b"'a\\';c"),
        (b"'a''b'", b"'a''b'"),
        (b"a\\'b", b"a\\'b"),
        (b"x\n'a\\'b'", b"x\n'a''b'"),
        (b"'a\\n'", b"'a\\n'"),
    ],
)
def test_escaped_quotes_are_doubled_where_they_are_quoted(text: bytes, doubled: bytes) -> None:
    assert ESCAPED.with_doubled_quotes(text) == doubled
    assert UNQUOTED.with_doubled_quotes(text) == text
