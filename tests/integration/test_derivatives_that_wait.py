"""Derivatives of inputs that are empty or idle: they start without them, and say what they wait for."""

from odf_testing.manifests import derivative, root
from odf_testing.story import Row, Story

from odf_common.metadata.events import SetDataSchema

RENTALS = ("event_time TIMESTAMP(3)", "bike BIGINT", "price DECIMAL(6,2)")
FAULTS = ("event_time TIMESTAMP(3)", "bike BIGINT", "part STRING")
DAILY = """
    SELECT window.start AS event_time, count(*) AS rentals, count(part) AS faults FROM (
        SELECT r.event_time, part FROM rentals r LEFT JOIN faults f
        ON r.bike = f.bike AND f.event_time BETWEEN r.event_time AND r.event_time + INTERVAL 1 DAY
    ) GROUP BY window(event_time, '1 day')
"""
BOTH = "SELECT event_time, bike FROM rentals UNION ALL SELECT event_time, bike FROM faults"


def on(day: int, bike: int, **more: object) -> Row:
    return {"event_time": f"2026-05-{day:02}T12:00:00Z", "bike": bike, **more}


def schemas_set(story: Story, dataset: str) -> int:
    return sum(isinstance(block.event, SetDataSchema) for _, block in story.chain(dataset).blocks)


def test_a_join_with_a_dataset_that_has_no_records_follows_its_watermark(story: Story) -> None:
    inputs = {"rentals": "bikes.rentals", "faults": "bikes.faults"}
    story.add(
        root("bikes.rentals", RENTALS),
        root("bikes.faults", FAULTS),
        derivative("bikes.daily", inputs, DAILY),
        derivative("bikes.both", inputs, BOTH),
    )
    story.ingest("bikes.rentals", [on(day, day, price=5) for day in range(1, 7)])
    story.pull("bikes.daily bikes.both --recursive")
    assert story.records("bikes.daily", "bikes.both", "bikes.faults") == [0, 6, 0]
    row = story.pull("bikes.daily")["bikes.daily"]
    assert (row["state"], row["records"]) == ("waiting", 0)
    assert "6 records held" in row["waitsFor"]
    assert "bikes.faults has no watermark; that of bikes.rentals is 2026-05-06T12:00:00Z" in row["waitsFor"]
    assert "`odf pull bikes.faults --set-watermark 2026-05-0" in row["waitsRemedy"]
    assert story.pull("bikes.both")["bikes.both"]["state"] == "up-to-date"
    assert story.summary("bikes.daily")["waitsForInput"] == "bikes.faults"
    said = story.node.run("status bikes.daily --output json")
    assert said[0]["waits_for"] == row["waitsFor"]

    story.pull("bikes.faults --set-watermark 2026-05-05T00:00:00Z")
    story.pull("bikes.daily")
    assert [(row["rentals"], row["faults"]) for row in story.tail("bikes.daily")] == [(1, 0)] * 3

    story.ingest("bikes.faults", [on(2, 2, part="bell"), on(6, 5, part="brake"), on(9, 9, part="lamp")])
    story.pull("bikes.rentals --set-watermark 2026-05-09T00:00:00Z")
    story.pull("bikes.daily bikes.both")
    assert [(row["rentals"], row["faults"]) for row in story.tail("bikes.daily")][3:] == [
        (1, 0),
        (1, 1),
        (1, 0),
    ]
    assert story.summary("bikes.daily")["late"] == 1
    assert story.records("bikes.both") == [9]
    story.pull("bikes.rentals bikes.faults --set-watermark 2026-05-20T00:00:00Z")
    rows = story.pull("bikes.daily bikes.both")
    assert {row["state"] for row in story.pull("bikes.daily bikes.both").values()} == {"up-to-date"}
    assert rows["bikes.daily"]["waitsFor"] is None
    assert [schemas_set(story, name) for name in ("bikes.rentals", "bikes.faults")] == [1, 1]
    verdicts = story.verify("bikes.daily bikes.both bikes.faults")
    assert [(one["verdict"], one["problems"]) for one in verdicts] == [("valid", [])] * 3


def test_the_schema_of_a_preprocess_query_is_known_before_its_first_record(story: Story) -> None:
    source = root("tills.refunds", ("at STRING", "till BIGINT"))
    source["content"]["metadata"][0]["preprocess"] = {
        "kind": "Sql",
        "engine": "spark",
        "query": "SELECT CAST(at AS TIMESTAMP) AS event_time, till, 1 AS n, upper('x') AS code FROM input",
    }
    query = "SELECT event_time, till FROM sales UNION ALL SELECT event_time, till FROM refunds"
    inputs = {"sales": "tills.sales", "refunds": "tills.refunds"}
    story.add(
        source,
        root("tills.sales", ("event_time TIMESTAMP(3)", "till BIGINT")),
        derivative("tills.all", inputs, query),
    )
    story.ingest("tills.sales", [{"event_time": "2026-05-01T12:00:00Z", "till": 1}])
    story.pull("tills.all")
    assert story.records("tills.all") == [1]

    story.ingest("tills.refunds", [{"at": "2026-05-01 12:00:00", "till": 2}])
    story.pull("tills.all")

    assert story.records("tills.all") == [2]
    assert schemas_set(story, "tills.refunds") == 1
    assert [one["verdict"] for one in story.verify("tills.all tills.refunds")] == ["valid"] * 2
