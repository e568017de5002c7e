import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.chains import read_chain
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Row, Story, derivative, ledger, root

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.identity.keys import PrivateKey, generate
from odf_common.metadata.events import KnownEvent, Seed, SetTransform, SqlQueryStep, TransformSql

COLUMNS = ("id BIGINT", "event_time TIMESTAMP(3)")
QUERY = "SELECT event_time, id FROM measured"
FAILS_ON_1 = "SELECT event_time, id FROM measured WHERE 1 / (id - 1) < 9"
REFUSED = "SELECT event_time, id FROM measured WHERE reflect('java.lang.System', 'lineSeparator') IS NOT NULL"


def record(number: int) -> Row:
    return {"id": number, "event_time": f"2026-01-01T00:{number:02}:00Z"}


@pytest.fixture
def measured(story: Story) -> Story:
    """A root, and a derivative of it that the engine has computed."""
    story.add(root("measured", COLUMNS), derivative("honest", {"measured": "measured"}, QUERY))
    story.ingest("measured", [record(1), record(2)])
    story.pull("honest")
    return story


def rewritten(folder: Path, key: PrivateKey, change: Callable[[KnownEvent], KnownEvent]) -> Path:
    """Make the chain in a folder that of another dataset, with changed events."""
    state: ChainState | None = None
    blocks = read_chain(folder).blocks
    shutil.rmtree(folder / "blocks")
    (folder / "blocks").mkdir()
    for _, block in blocks:
        event = block.event
        assert isinstance(event, KnownEvent)
        event = replace(event, dataset_id=key.dataset_id) if isinstance(event, Seed) else change(event)
        (written,), state = build_blocks(state, [event], system_time=block.system_time, version=3)
        (folder / "blocks" / str(written.hash)).write_bytes(written.raw)
    assert state is not None
    (folder / "refs" / "head").write_text(str(state.head))
    return folder


def with_query(query: str) -> Callable[[KnownEvent], KnownEvent]:
    def change(event: KnownEvent) -> KnownEvent:
        if not isinstance(event, SetTransform):
            return event
        assert isinstance(event.transform, TransformSql)
        steps = (SqlQueryStep(query=query),)
        return replace(event, transform=replace(event.transform, queries=steps))

    return change


def test_it_is_not_checked_and_derived_no_further_and_status_says_why(
    measured: Story, tmp_path: Path
) -> None:
    key, node = generate(), measured.node
    folder = rewritten(measured.copy("honest", tmp_path / "theirs"), key, with_query(REFUSED))
    measured.pull(f"{folder.as_uri()} --as theirs")

    (verdict,) = measured.verify("theirs", code=1)

    assert verdict["verdict"] == "not-checked"
    (problem,) = verdict["problems"]
    assert problem["kind"] == "replay-refused"
    assert problem["text"].startswith("not checked, like later blocks of the same query: the engine refuses")
    assert "reflect" in problem["text"]
    (whole,) = measured.verify("theirs --integrity")
    assert whole["verdict"] == "valid"

    (tmp_path / "key").write_text(key.text())
    node.run(f"key import theirs {tmp_path / 'key'}")
    measured.ingest("measured", [record(3)])
    said = node.fails("pull theirs")
    assert "reflect" in said
    (row,) = node.run("status theirs --output json")
    assert "reflect" in row["problem"]
    assert "`odf commit theirs FILE`" in row["remedy"]
    assert measured.records("theirs") == [2]

    query = json.dumps(derivative("theirs", {"measured": "measured"}, QUERY)["content"]["metadata"][0])
    said = node.fails("commit theirs -", stdin=query.encode())
    assert "the query that is replaced is refused now, so its state cannot be migrated" in said
    assert "`odf reset theirs 0 --yes`" in said
    assert "`odf reset theirs 0 --yes`" in row["remedy"]
    node.run("reset theirs 0 --yes")
    node.run("commit theirs -", stdin=query.encode())
    measured.pull("theirs")
    assert measured.chain("theirs").column("id") == [1, 2, 3]
    (row,) = node.run("status theirs --output json")
    assert row["problem"] is None
    assert [one["verdict"] for one in measured.verify("theirs")] == ["valid"]


def test_a_block_on_which_the_query_fails_is_not_checked_and_the_next_block_is(
    story: Story, tmp_path: Path
) -> None:
    story.add(root("counted", COLUMNS), derivative("whole", {"measured": "counted"}, QUERY))
    for records in ([record(1), record(2)], [record(3)]):
        story.ingest("counted", records)
        story.pull("whole")
    folder = rewritten(story.copy("whole", tmp_path / "foreign"), generate(), with_query(FAILS_ON_1))
    story.pull(f"{folder.as_uri()} --as foreign")

    (verdict,) = story.verify("foreign", code=1)

    assert (verdict["verdict"], verdict["transforms"]) == ("not-checked", 1)
    (problem,) = verdict["problems"]
    assert (problem["kind"], problem["sequence_number"]) == ("replay-failed", 3)
    assert problem["text"].startswith("not checked: the query fails on what this block read: ")
    assert "Division by zero" in problem["text"]


TRIP_COLUMNS = ("id BIGINT", "origin STRING", "amount INT", "at TIMESTAMP(3)")
WRONG = {
    "a misspelt keyword": ("SELEC id FROM trips", "SELEC"),
    "an unknown column": ("SELECT at AS event_time, amuont FROM trips", "amuont"),
    "an unknown table": ("SELECT id FROM tripps", "tripps"),
    "an unknown function": ("SELECT at AS event_time, averge(id) FROM trips", "averge"),
    "a column that is not grouped": (
        "SELECT window, origin, id FROM trips GROUP BY window(at, '1 hour'), origin",
        "id",
    ),
    "an unclosed parenthesis": ("SELECT at AS event_time, (id FROM trips", "FROM"),
    "an empty query": ("", ""),
}
FORBIDDEN = {
    "a table made": "CREATE TABLE stolen AS SELECT * FROM trips",
    "a table dropped": "DROP TABLE trips",
    "rows inserted": "INSERT INTO trips VALUES (1, 'x', 1, now())",
    "a setting": "SET spark.sql.shuffle.partitions=1",
    "a file read": "SELECT * FROM text.`/etc/passwd`",
    "a parquet file read": "SELECT * FROM parquet.`/tmp/data.parquet`",
    "java called": "SELECT at AS event_time, reflect('java.lang.System', 'getenv', 'PATH') AS path FROM trips",
    "java called by its other name": "SELECT at AS event_time, java_method('java.util.UUID', 'randomUUID') AS u FROM trips",
    "a jar added": "ADD JAR '/tmp/evil.jar'",
    "a function made": "CREATE FUNCTION f AS 'evil.Udf'",
    "chance": "SELECT at AS event_time, rand() AS luck FROM trips",
    "a new name each time": "SELECT at AS event_time, uuid() AS u FROM trips",
    "the clock": "SELECT at AS event_time, current_timestamp() AS now FROM trips",
    "the clock as a text": "SELECT at AS event_time, TIMESTAMP 'now' AS now FROM trips",
    "a collation": "SELECT at AS event_time, origin COLLATE UNICODE_CI AS origin FROM trips",
    "a sketch": "SELECT window.start AS event_time, kll_sketch_agg_bigint(id) AS s FROM trips GROUP BY window(at, '1 hour')",
    "a limit": "SELECT at AS event_time, id FROM trips ORDER BY id LIMIT 3",
    "rows that change next to rows that wait": (
        "SELECT window.start AS event_time, count(*) AS n FROM trips GROUP BY window(at, '1 hour') "
        "UNION ALL SELECT max(at) AS event_time, count(*) AS n FROM trips GROUP BY origin"
    ),
    "a time of the left side": (
        "SELECT a.at AS event_time, a.id FROM trips FOR SYSTEM_TIME AS OF b.at AS a JOIN trips AS b ON a.id = b.id"
    ),
    "windows from an offset": (
        "SELECT window.start AS event_time, count(*) AS n FROM trips GROUP BY window(at, '1 hour', '1 hour', '5 minutes')"
    ),
    "a product that loses places": (
        "SELECT at AS event_time, CAST(amount AS DECIMAL(38, 18)) * CAST(id AS DECIMAL(38, 18)) AS cost FROM trips"
    ),
    "several statements": "SELECT at AS event_time, id FROM trips; DROP TABLE trips",
    "the catalog": "SHOW TABLES",
}


@pytest.fixture(scope="module")
def trips(node: EmbeddedNode) -> str:
    """An input with a schema and a record."""
    story = Story(node)
    story.add(root("trips", TRIP_COLUMNS, merge=ledger("id"), event_time="at"))
    story.ingest("trips", [{"id": 1, "origin": "EWR", "amount": 3, "at": "2026-01-01T00:00:00Z"}])
    return "trips"


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_sql_is_refused_with_the_engines_words(story: Story, trips: str, kind: str) -> None:
    query, culprit = WRONG[kind]
    name = "wrong." + kind.replace(" ", "-")
    said = story.refused(derivative(name, {"trips": trips}, query))
    assert name in said
    assert culprit.lower() in said.lower()
    assert story.find(name) is None


def test_the_position_of_an_error_is_reported_in_lines_and_columns(story: Story, trips: str) -> None:
    query = "SELECT at AS event_time,\n  origin,\n  amuont\nFROM trips"
    said = story.refused(derivative("wrong.position", {"trips": trips}, query))
    assert "amuont" in said
    assert "line 3" in said


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_forbidden_sql_is_refused(story: Story, trips: str, kind: str) -> None:
    name = "forbidden." + kind.replace(" ", "-")
    said = story.refused(derivative(name, {"trips": trips}, FORBIDDEN[kind]))
    assert name in said
    assert story.find(name) is None


@pytest.mark.parametrize("kind", ["a table dropped", "a file read", "java called", "rows inserted"])
def test_forbidden_sql_is_refused_as_an_ad_hoc_query_too(story: Story, trips: str, kind: str) -> None:
    assert "error:" in story.node.fails("sql", stdin=FORBIDDEN[kind].encode())


def test_an_invalid_manifest_next_to_a_valid_one_is_named_and_the_input_is_kept(
    story: Story, trips: str
) -> None:
    right = derivative("right.pair", {"trips": trips}, "SELECT at AS event_time, id FROM trips")
    wrong = derivative("wrong.pair", {"trips": trips}, "SELECT at AS event_time, no_such FROM trips")
    said = story.refused(right, wrong)
    assert "wrong.pair" in said
    assert story.find("wrong.pair") is None
    assert story.records("trips") == [1]
    if story.find("right.pair") is None:
        story.add(right)
    story.pull("right.pair")
    assert story.chain("right.pair").column("id") == [1]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT max(at) AS at, origin, sum(amount) AS amount FROM input GROUP BY origin",
        "SELECT at, origin, row_number() OVER (PARTITION BY origin ORDER BY at) AS n FROM input",
        "SELECT DISTINCT at, origin FROM input",
        "SELECT at, origin FROM input LIMIT 2",
    ],
    ids=["groups", "places", "distinct", "limit"],
)
def test_a_preprocess_query_that_depends_on_how_batches_are_cut_is_refused(story: Story, query: str) -> None:
    manifest = root("cut.trips", TRIP_COLUMNS, event_time="at")
    manifest["content"]["metadata"][0]["preprocess"] = {"kind": "Sql", "engine": "spark", "query": query}
    said = story.refused(manifest)
    assert "cannot be used in preprocess" in said
    assert story.find("cut.trips") is None


COUNTED = (
    "SELECT window.start AS event_time, count(*) AS n FROM named GROUP BY window(event_time, '10 minutes')"
)


@pytest.fixture
def named(story: Story) -> Story:
    """A root, and its records counted by ten minutes."""
    story.add(root("named", COLUMNS), derivative("named.counted", {"named": "named"}, COUNTED))
    return story


def test_the_engine_is_named_and_another_is_refused(named: Story) -> None:
    named.ingest("named", [record(1), record(12), record(25)])
    named.pull("named --set-watermark 2026-01-01T00:30:00Z")
    assert named.pull("named.counted")["named.counted"]["late"] == 0
    assert named.chain("named.counted").column("n") == [1, 1, 1]

    (event,) = [
        block.event
        for _, block in named.chain("named.counted").blocks
        if isinstance(block.event, SetTransform)
    ]
    version = str(event.transform.version)
    assert "+spark" in version
    transform = {"kind": "Sql", "engine": "spark", "version": "0.0.1+spark3.5.0", "query": COUNTED}
    inputs = [{"datasetRef": "named", "alias": "named"}]
    text = json.dumps({"kind": "SetTransform", "inputs": inputs, "transform": transform})
    said = named.node.fails("commit named.counted -", stdin=text.encode())
    assert "0.0.1+spark3.5.0" in said
    assert version in said
    (verdict,) = named.verify("named.counted")
    assert (verdict["verdict"], verdict["problems"]) == ("valid", [])
