import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Story, derivative, ledger, root

COLUMNS = ("id BIGINT", "origin STRING", "amount INT", "at TIMESTAMP(3)")
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
    story.add(root("trips", COLUMNS, merge=ledger("id"), event_time="at"))
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
    manifest = root("cut.trips", COLUMNS, event_time="at")
    manifest["content"]["metadata"][0]["preprocess"] = {"kind": "Sql", "engine": "spark", "query": query}
    said = story.refused(manifest)
    assert "cannot be used in preprocess" in said
    assert story.find("cut.trips") is None
