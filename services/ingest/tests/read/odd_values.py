"""Odd values of each type and format, and messages that hold them."""

import json
from typing import Final

import pyarrow as pa
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson

JSON_STEPS: Final = [ReadStepNdJson(), ReadStepJson()]
STEPS: Final = [*JSON_STEPS, ReadStepCsv()]
NUMBERS: Final = [
    "0",
    "-0",
    "-0.0",
    "1039.0",
    "1039.5",
    "1e3",
    "1.5e1",
    "-1E+2",
    "1e400",
    "-1e400",
    "1e-400",
    "1e400000000",
    "1e99999999999999999999",
    "1e-99999999999999999999",
    "3e38",
    "1e39",
    "9007199254740993",
    "9007199254740993.0",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615.0",
    "12345678901234567890.123456789",
    "99999999999999999999999999999999999999",
    "999999999999999999999999999999999999999",
    "0.00000000000000000000000000000000000001",
    "1" * 5000,
    "NaN",
    "Infinity",
    "-Infinity",
]
TEXTS: Final = [
    "",
    "x",
    "1",
    "true",
    "ä\U0001f600",
    "a\x00b",
    'say "1.0, 2e3"',
    "comma, semicolon; 'quote'",
    "two\nlines",
    "0001-01-01",
    "9999-12-31",
    "10000-01-01",
    "0000-01-01",
    "2020-02-30",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+05:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-05:00",
    "0000-12-31T23:00:00Z",
    "2020-01-01 00:00:00",
    "2020-01-01T00:00:00.123456789+01:30",
    "2016-12-31T23:59:60Z",
    "123e4567-e89b-12d3-a456-426614174000",
    "12:34:56.789",
    "24:00",
]
TYPES: Final = [
    "BOOLEAN",
    "TINYINT",
    "INT",
    "BIGINT",
    "BIGINT UNSIGNED",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(4, 2)",
    "DECIMAL(38, 9)",
    "DECIMAL(50, 2)",
    "STRING",
    "BINARY",
    "DATE",
    "TIME",
    "TIMESTAMP(3)",
    "TIMESTAMP(6)",
    "TIMESTAMP(9)",
    "UUID",
]
NESTED: Final = ["BIGINT[]", "STRUCT<a: INT, b: TIMESTAMP(3)>", "DOUBLE[]", "STRUCT<f: FLOAT>"]
JSON_VALUES: Final = [
    *NUMBERS,
    *(json.dumps(text) for text in TEXTS),
    "null",
    "true",
    "[]",
    "{}",
    "[1.0]",
    "[1e400]",
    '{"a":1.0}',
    '{"f":1e39}',
    '{"b":"9999-12-31T23:59:59-05:00"}',
    '{"a":1,"a":2}',
    '"\\ud800"',
    '"\\u0000"',
    "nan",
    "01",
    "[1,]",
]
JSON_MESSAGES: Final = [
    *(f'{{"c":{value}}}'.encode() for value in JSON_VALUES),
    b"{}",
    b"",
    b"null",
    b"[1]",
    b'{"other":1}',
    b'{"c":null,"other":"\xff"}',
    b'{"c":1}{"c":2}',
    b'{"c":1}\n{"c":2}',
    b'{\n"c":\n1}',
    b'{"c":1}\x00}',
    b'{"c":1,"\xff":2}',
    b'{"c":1,"\\ud800":2}',
    b'{"c":1}null{"c":2}',
    b'{"c":1,"c":1}',
    b'{"other":1,"other":2,"c":1.0}',
    b'\xef\xbb\xbf{"c":1}',
    b'{"c":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
]
CSV_FIELDS: Final = [
    *NUMBERS,
    *(f'"{text}"'.replace("\x00", "") for text in TEXTS if '"' not in text),
    "",
    '""',
    '"never closed',
    'a "literal" quote',
    '5" pipe',
    '"tail"x',
    " 1 ",
    "+1",
    "inf",
    "nan",
    '"a\r\nb"',
    "a\rb",
    "\x00",
]
CSV_MESSAGES: Final = [
    *(f"{n},{field}".encode() for n, field in enumerate(CSV_FIELDS)),
    b"",
    b"\n",
    b"1",
    b"1,2,3",
    b"1,\xff",
    b'"1,\n"2,3',
    b"\xef\xbb\xbf1,x",
    b"\xef\xbb\xbf\xef\xbb\xbf1,x",
    b"1,a\n2,b",
]


TOKENS: Final = [
    b"null",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"'",
    b";",
    b"\\",
    b"\n",
    b"\r",
    b"\t",
    b"\0",
    b"-",
    b".0",
    b"e3",
    b"9" * 20,
    b'"c"',
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
]
OPTIONS: Final = [
    {},
    {"quote": "'", "separator": ";", "escape": "\\"},
    {"escape": '"', "null_value": "NA"},
    {"quote": ""},
]


def odd_messages(step: ReadStep) -> st.SearchStrategy[bytes]:
    """Messages of the list, some of them with a misplaced token."""
    some = st.sampled_from(messages_of(step))
    broken = st.builds(
        lambda message, at, token: message[:at] + token + message[at:],
        some.filter(lambda message: len(message) < 200),
        st.integers(0, 40),
        st.sampled_from(TOKENS),
    )
    return st.one_of(some, broken)


def messages_of(step: ReadStep) -> list[bytes]:
    return CSV_MESSAGES if isinstance(step, ReadStepCsv) else JSON_MESSAGES


def declared(step: ReadStep, type_: str) -> pa.Schema:
    return ddl_to_schema(["n BIGINT", f"c {type_}"] if isinstance(step, ReadStepCsv) else [f"c {type_}"])
