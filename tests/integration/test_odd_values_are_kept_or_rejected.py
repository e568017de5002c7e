"""Every odd value in every type, format and merge strategy: kept and shown, or rejected and counted; never stuck."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from odf_testing.story import Manifest, Sender, Story, root

TYPES: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "small": "SMALLINT",
    "int": "INT",
    "big": "BIGINT",
    "huge": "BIGINT UNSIGNED",
    "float": "FLOAT",
    "double": "DOUBLE",
    "money": "DECIMAL(38, 9)",
    "text": "STRING",
    "day": "DATE",
    "clock": "TIME",
    "instant": "TIMESTAMP(3)",
    "nanos": "TIMESTAMP(9)",
    "uuid": "UUID",
    "raw": "BINARY",
    "many": "BIGINT[]",
    "pair": "STRUCT<a: BIGINT, b: STRING>",
}
# As JSON strings, since Python's values cannot represent all of them.
NUMBERS: Final = (
    "0", "-0", "-0.0", "1039.0", "1e3", "1039.5", "1e400", "-1e400", "1e-400", "NaN", "Infinity", "9007199254740993",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "32768", "-32769",
    "12345678901234567890.123456789", "0.1234567891", "1" + "0" * 400, "true", "null", "[]", "{}", "[1,null,2.0]",
    '{"a":1,"b":"x"}', '{"a":1.5}', '{"a":null,"c":2}', '{"a":1,"a":2}',
)  # fmt: skip
TEXTS: Final = (
    "", " ", "NaN", "nan", "inf", "null", "NULL", "0", "1", "1039.0", "1,5", "true", "yes", "a\u0000b", "\u001b[31mred", "\ud800",
    "\U0001f600", "e\u0301", "\u202eabc", "x" * 5000, "line\nbreak", 'quo"te', "2020-02-30", "2020-02-29",
    "0001-01-01", "9999-12-31", "10000-01-01", "-0001-01-01", "0000-01-01", "1677-09-21", "2262-04-12",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00",
    "1677-01-01T00:00:00Z", "2263-01-01T00:00:00Z", "2020-01-01T24:00:00Z", "2020-01-01T00:00:60Z", "2020-01-01 00:00:00",
    "2020-01-01T00:00:00.123456789Z", "23:59:59.999", "24:00", "12:34", "123e4567-e89b-12d3-a456-426614174000",
    "123E4567E89B12D3A456426614174000", "AAEC", "ÿ",
)  # fmt: skip
NESTED: Final = ("many", "pair")  # which Csv cannot hold
STRATEGIES: Final[Mapping[str, Manifest]] = {
    "append": {"kind": "Append"},
    "ledger": {"kind": "Ledger", "primaryKey": ["id"]},
    "upsert": {"kind": "UpsertStream", "primaryKey": ["id"]},
    "changelog": {"kind": "ChangelogStream", "primaryKey": ["id"]},
    "snapshot": {"kind": "Snapshot", "primaryKey": ["id"]},
}
CARRIES_OP: Final = ("upsert", "changelog")
READS: Final[Mapping[str, Manifest]] = {
    "ndjson": {"kind": "NdJson"},
    "json": {"kind": "Json"},
    "csv": {"kind": "Csv"},
}


def types(format_: str) -> dict[str, str]:
    return {name: type_ for name, type_ in TYPES.items() if format_ != "csv" or name not in NESTED}


def columns(strategy: str, format_: str) -> list[str]:
    op = ["op INT"] if strategy in CARRIES_OP else []
    return ["id BIGINT", *op, *(f"{name} {type_}" for name, type_ in types(format_).items())]


def manifest(name: str, strategy: str, format_: str) -> Manifest:
    made = root(name, columns(strategy, format_), merge=STRATEGIES[strategy])
    made["content"]["metadata"][0]["read"] |= READS[format_]
    return made


def odd_cells(format_: str) -> Iterator[tuple[str, str]]:
    """Columns and JSON texts of one value each."""
    for name in types(format_):
        yield from ((name, text) for text in NUMBERS)
        yield from ((name, json.dumps(text)) for text in TEXTS)


def as_json(id_: int, strategy: str, name: str, text: str) -> bytes:
    op = '"op":0,' if strategy in CARRIES_OP else ""
    return f'{{"id":{id_},{op}"{name}":{text}}}'.encode()


def as_csv(id_: int, strategy: str, name: str, text: str) -> bytes:
    cells: dict[str, Any] = dict.fromkeys(types("csv"), "")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    cells[name] = value if isinstance(value, str) else text
    sink = io.StringIO()
    op = [0] if strategy in CARRIES_OP else []
    csv.writer(sink, lineterminator="").writerow([id_, *op, *cells.values()])
    return sink.getvalue().encode(errors="surrogatepass")


# Strategies get columns whatever the format, so that other pairs would find no more.
@pytest.mark.parametrize(
    ("format_", "strategies"),
    [
        ("ndjson", tuple(STRATEGIES)),
        *((format_, ("append",)) for format_ in READS if format_ != "ndjson"),
        *(
            pytest.param(format_, tuple(STRATEGIES)[1:], marks=pytest.mark.soak)
            for format_ in READS
            if format_ != "ndjson"
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_every_message_is_a_record_or_a_reject(
    story: Story, format_: str, strategies: tuple[str, ...]
) -> None:
    write = as_csv if format_ == "csv" else as_json
    names = {strategy: f"odd.{format_}.{strategy}" for strategy in strategies}
    story.add(*(manifest(name, strategy, format_) for strategy, name in names.items()))
    cells = list(odd_cells(format_))
    sender = Sender(story.node)
    for strategy, name in names.items():
        messages = [write(id_, strategy, *cell) for id_, cell in enumerate(cells)]
        if strategy == "snapshot":
            messages = messages[:: len(messages) // 40]  # each is a separate snapshot
        last = write(len(cells), strategy, "int", "7")
        sender.send(story.topic(name), [*messages, last])
        assert story.pull(name)[name]["error"] is None
        summary = story.summary(name)
        if strategy != "snapshot":
            assert summary["records"] + summary["rejected"] == len(messages) + 1
            assert summary["records"] > len(messages) // 8
        (shown,) = story.node.run(f"tail {name} -n 1 --output json")
        assert shown["id"] == len(cells), "what came after the odd ones is not there"
        if strategy == "append":  # the values are the same in all
            assert len(story.tail(name)) == summary["records"]
            assert story.node.run(f"tail {name} -n 1000") != ""
            query = f"SELECT * FROM `{name}` WHERE id = {len(cells)}"
            assert story.node.run(f"sql -c '{query}' --output json") != []
        assert [one["verdict"] for one in story.verify(name)] == ["valid"]
