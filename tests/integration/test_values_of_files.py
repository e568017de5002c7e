import csv
import gzip
import http.client
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.embedded import PATIENCE
from odf_testing.story import APPEND, Manifest, Row, Sender, Story, derivative, ledger, root

TIME = "event_time TIMESTAMP(3)"
FARES = (TIME, "id BIGINT", "fare DECIMAL(6, 2)")
# The cut one ends inside of the second fare, which it would make 20 times smaller.
RIDES = b"event_time,id,fare\n2026-06-01T07:00:00Z,1,18.50\n2026-06-01T08:00:00Z,2,240.00\n"


def reading(name: str, kind: str, columns: Sequence[str], merge: Manifest, **options: object) -> Manifest:
    """Return a root that takes files of a format."""
    manifest = root(name, columns, merge=merge)
    (source,) = manifest["content"]["metadata"]
    source["read"].update(kind=kind, **options)
    return manifest


def post(story: Story, name: str, body: bytes, encoding: str) -> tuple[int, Row]:
    address = str(story.node.node.http).removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        headers = {"Content-Type": "text/csv", "Content-Encoding": encoding}
        connection.request("POST", f"/{name}/ingest?wait=commit", body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "merge", [ledger("id"), {"kind": "Snapshot", "primaryKey": ["id"]}], ids=["Ledger", "Snapshot"]
)
def test_a_compressed_body_that_was_cut_adds_and_retracts_nothing(story: Story, merge: Manifest) -> None:
    name, whole = f"cut.{merge['kind'].lower()}", gzip.compress(RIDES, mtime=0)
    story.add(reading(name, "Csv", FARES, merge, header=True))
    assert post(story, name, gzip.compress(RIDES[:48], mtime=0), "gzip")[0] == 200
    before = story.chain(name).head
    for cut in (*range(10, len(whole), 7), len(whole) - 4):
        status, answer = post(story, name, whole[:cut], "gzip")
        assert (status, answer["code"]) == (400, "BodyCutOff"), cut
    assert story.chain(name).head == before
    assert post(story, name, whole, "gzip")[0] == 200
    assert [(row["id"], row["fare"]) for row in story.tail(name)] == [(1, "18.50"), (2, "240.00")]


def table(**columns: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array([1, 2]), **columns})


NOON = pa.array([1_780_315_200_000_000] * 2, pa.timestamp("us", "UTC"))
REFUSED = {
    "seconds": table(event_time=pa.array([1_780_315_200, 1_780_318_800])),
    "days": table(event_time=NOON, day=pa.array([20_600, 20_601], pa.int32())),
    "three places": table(event_time=NOON, fare=pa.array([18.5, 0.375])),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_number_of_a_parquet_file_is_not_taken_for_another_value(
    story: Story, tmp_path: Path, kind: str
) -> None:
    name, file = f"typed.{kind.replace(' ', '.')}", tmp_path / "rides.parquet"
    story.add(reading(name, "Parquet", (*FARES, "day DATE"), APPEND))
    pq.write_table(REFUSED[kind], file)
    story.node.run(f"source set {name} badRecords=stop")
    said = story.node.fails(f"ingest {name} {file}")
    column, value = {
        "seconds": ("event_time", "1780315200"), "days": ("day", "20600"), "three places": ("fare", "0.375"),
    }[kind]  # fmt: skip
    assert f"column {column}" in said
    assert value in said
    assert story.records(name) == [0]
    pq.write_table(table(event_time=NOON, fare=pa.array([18.5, 0.37])), file)
    story.node.run(f"ingest {name} {file}")
    assert [row["fare"] for row in story.tail(name)] == ["18.50", "0.37"]


def test_a_finer_time_before_1970_stays_in_its_second_and_day(story: Story) -> None:
    name, daily = "early.flights", "early.flights.daily"
    query = (
        "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(event_time, '1 day')"
    )
    story.add(
        reading(name, "Csv", (TIME, "id BIGINT", "landed TIMESTAMP(0)"), APPEND, header=True),
        derivative(daily, {"flights": name}, query),
    )
    rows = (
        b"event_time,id,landed\n"
        b"1969-06-30T23:59:59.9999Z,1,1969-07-01T11:15:08.75Z\n1971-06-30T23:59:59.9999Z,2,1971-07-01T11:15:08.75Z\n"
    )
    story.node.run(f"ingest {name} -", stdin=rows)
    story.pull(f"{name} --set-watermark 1972-01-01T00:00:00Z")
    story.pull(daily)
    assert [(row["event_time"], row["landed"]) for row in story.tail(name)] == [
        ("1969-06-30T23:59:59.999Z", "1969-07-01T11:15:08Z"),
        ("1971-06-30T23:59:59.999Z", "1971-07-01T11:15:08Z"),
    ]
    assert [row["event_time"][:10] for row in story.tail(daily)] == ["1969-06-30", "1971-06-30"]


def test_backslashes_and_codes_of_a_csv_file_are_what_was_written(story: Story, tmp_path: Path) -> None:
    name, file, manifest = "codes", tmp_path / "codes.csv", tmp_path / "codes.yaml"
    file.write_text(
        'key,zip,folder\n1,01067,"\\\\nas\\plans, old\\"\n2,00184,\\\\nas\\new\n3,99423,"{""re"":""\\\\w+""}"\n'
    )
    story.node.run(f"new {name} --from {file} -o {manifest}")
    story.node.run(f"add {manifest}")
    story.node.run(f"ingest {name} {file}")
    assert [(row["zip"], row["folder"]) for row in story.tail(name)] == [
        ("01067", "\\\\nas\\plans, old\\"),
        ("00184", "\\\\nas\\new"),
        ("99423", '{"re":"\\\\w+"}'),
    ]


def test_lines_that_are_appended_to_a_file_follow(story: Story, tmp_path: Path) -> None:
    name, file = "meter.log", tmp_path / "meter.csv"
    source = {
        "kind": "SetPollingSource",
        "fetch": {"kind": "FilesGlob", "path": str(file)},
        "read": {"kind": "Csv", "header": True, "schema": [TIME, "kwh BIGINT"]},
        "merge": APPEND,
    }
    content = {"name": name, "kind": "Root", "metadata": [source]}
    story.add({"kind": "DatasetSnapshot", "version": 1, "content": content})
    file.write_text("event_time,kwh\n2026-06-01T00:00:00Z,7\n")
    story.pull(name)
    with file.open("a") as more:
        more.write("2026-06-02T00:00:00Z,8\n2026-06-03T00:00:00Z,1234\n")
    assert story.pull(name)[name]["records"] == 2
    story.pull(name)
    assert [row["kwh"] for row in story.tail(name)] == [7, 8, 1234]
    file.write_text("event_time,kwh\n2026-06-01T00:00:00Z,9\n")
    assert "meter.csv" in story.node.fails(f"pull {name}")
    assert story.records(name) == [3]


def test_a_snapshot_names_the_key_that_it_has_twice_and_its_lines(story: Story) -> None:
    name = "towns"
    story.add(
        reading(
            name,
            "Csv",
            ("code BIGINT", "town STRING"),
            {"kind": "Snapshot", "primaryKey": ["code"]},
            header=True,
        )
    )
    story.node.run(f"ingest {name} -", stdin=b"code,town\n4,Graz\n7,Linz\n")
    for last in (b"4,Graz\n", b"4,Wels\n"):
        said = story.node.fails(f"ingest {name} -", stdin=b"code,town\n4,Graz\n9,Enns\n" + last)
        assert "the key code = 4 in 2 records: lines 2 and 4" in said
    story.node.run(f"ingest {name} -", stdin=b"code,town\n7,Linz\n4,Graz\n")
    assert story.records(name) == [2]


def test_an_id_that_its_column_cannot_hold_is_rejected_and_the_message_says_how_it_goes_on(
    story: Story,
) -> None:
    name = "small.ids"
    story.add(root(name, (TIME, "id INT"), merge=ledger("id")))
    rows = [{"event_time": "2026-06-01T00:00:00Z", "id": id_} for id_ in (2**31 - 1, 2**31, 5)]
    story.publish(name, rows)
    story.await_records({name: 2})
    (letter,) = story.dead_letters(story.topic(name))
    assert "column id: 2147483648 is not a value of INT" in letter["reason"]
    source = root(name, (TIME, "id BIGINT"), merge=ledger("id"))["content"]["metadata"][0]
    said = story.node.fails(f"commit {name} -", stdin=json.dumps(source).encode())
    assert "column id: was INT and cannot become BIGINT" in said
    assert "guide to ingest: Numbers that outgrow their column" in said


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
