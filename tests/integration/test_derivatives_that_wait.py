"""Derivatives whose rows wait: over empty or idle inputs, over versions in time, and over what begins to retract."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from odf_testing.story import Manifest, Row, Story, as_text, derivative, ledger, root

from odf_common.metadata.events import SetDataSchema

RENTALS = ("event_time TIMESTAMP(3)", "bike BIGINT", "price DECIMAL(6,2)")
FAULTS = ("event_time TIMESTAMP(3)", "bike BIGINT", "part STRING")
DAILY = """
    SELECT window.start AS event_time, count(*) AS rentals, count(part) AS faults FROM (
        SELECT r.event_time, part FROM rentals r LEFT JOIN faults f
        ON r.bike = f.bike AND f.event_time BETWEEN r.event_time AND r.event_time + INTERVAL 1 DAY
    ) GROUP BY window(event_time, '1 day')
"""
FARES = ("event_time TIMESTAMP(3)", "line STRING", "fare DECIMAL(6,2)")
RIDES = ("event_time TIMESTAMP(3)", "id BIGINT", "line STRING")
FARE_OF_RIDE = """
    SELECT r.event_time, r.id, f.fare FROM rides AS r
    LEFT JOIN fares FOR SYSTEM_TIME AS OF r.event_time AS f ON r.line = f.line
"""
FARE_OF_PAID_RIDE = """
    SELECT event_time, id, fare FROM (
        SELECT r.event_time, r.id, f.fare FROM rides AS r
        JOIN fares FOR SYSTEM_TIME AS OF r.event_time AS f ON r.line = f.line
    ) WHERE fare IS NOT NULL
"""
# Joins of versions: of the time of a ride, outer and inner; by a comparison of times; of all versions.
JOINS_OF_FARES = (
    FARE_OF_RIDE,
    FARE_OF_PAID_RIDE,
    """
    SELECT r.event_time, r.id, f.fare FROM rides AS r
    JOIN fares AS f ON r.line = f.line AND f.event_time BETWEEN r.event_time - INTERVAL 1 DAY AND r.event_time
    """,
    """
    SELECT greatest(r.event_time, f.event_time) AS event_time, r.id, f.fare FROM rides AS r
    JOIN fares AS f ON r.line = f.line
    """,
)
LAMPS = ("event_time TIMESTAMP(3)", "lamp BIGINT", "watts BIGINT")
HOURLY = (
    "SELECT window.start AS event_time, sum(watts) AS watts FROM lamps GROUP BY window(event_time, '1 hour')"
)
BOTH = "SELECT event_time, bike FROM rentals UNION ALL SELECT event_time, bike FROM faults"


def on(day: int, bike: int, **more: object) -> Row:
    return {"event_time": f"2026-05-{day:02}T12:00:00Z", "bike": bike, **more}


def at(time: str, **more: object) -> Row:
    return {"event_time": f"2026-05-04T{time}:00Z", **more}


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


CHANGES_OF_FARES = (
    at("06:00", line="T1", fare="2.10"),
    at("09:00", line="T1", fare="2.40"),
    at("10:00", line="T1", fare="2.20"),
    at("11:00", line="T1", fare=None),
    at("12:00", line="T7", fare="1.00"),
)
OTHER_FARES = (at("10:45", line="N9", fare="4.00"), at("11:10", line="N9", fare="4.50"))
FARES_BY_RIDE = {0: None, 1: "2.10", 2: "2.40", 3: "2.20", 4: None, 5: "1.00"}
UPSERTS = {"kind": "UpsertStream", "primaryKey": ["line"]}


def fares_in_order(*, has_others: bool) -> Sequence[Row]:
    fares = [*CHANGES_OF_FARES, *(OTHER_FARES if has_others else ())]
    return sorted(fares, key=lambda fare: str(fare["event_time"]))


def test_a_price_of_its_time_is_not_looked_up_in_a_table_that_is_overwritten(story: Story) -> None:
    fares, rides = "trams.current", "trams.some"
    story.add(root(fares, FARES, merge=UPSERTS), root(rides, RIDES, merge=ledger("id")))
    for query in JOINS_OF_FARES:
        said = story.refused(derivative("trams.refused", {"rides": rides, "fares": fares}, query))
        assert "but fares merges by UpsertStream" in said, query
        if "AS OF" in query:
            assert "Ledger with the key and the event time as primaryKey" in said
            assert "the end of a version is a record too, such as one with a NULL price" in said
    assert story.find("trams.refused") is None


@pytest.mark.parametrize("has_others", [False, True], ids=["alone", "others between"])
@pytest.mark.parametrize("how", ["push", "pushes", "messages"])
@pytest.mark.parametrize(
    "merge", [ledger("line", "event_time"), {"kind": "Append"}], ids=["Ledger", "Append"]
)
def test_each_ride_has_the_fare_of_its_time_however_the_fares_were_pushed(
    story: Story, merge: Manifest, how: str, has_others: bool
) -> None:
    prefix = f"trams.{merge['kind'].lower()}.{how}.{'more' if has_others else 'less'}"
    fares, rides, priced, paid = (f"{prefix}.{name}" for name in ("fares", "rides", "priced", "paid"))
    inputs = {"rides": rides, "fares": fares}
    story.add(
        root(fares, FARES, merge=merge),
        root(rides, RIDES, merge=ledger("id")),
        derivative(priced, inputs, FARE_OF_RIDE),
        derivative(paid, inputs, FARE_OF_PAID_RIDE),
    )
    versions = fares_in_order(has_others=has_others)
    if how == "messages":
        story.publish(fares, versions)
    else:
        for push in [versions] if how == "push" else [[one] for one in versions]:
            story.ingest(fares, push)
            story.pull(f"{priced} {paid}")
    times = ("05:30", "08:30", "09:30", "10:30", "11:30")
    trips = [at(time, id=number, line="T1") for number, time in enumerate(times)]
    story.ingest(rides, [*trips, at("12:00", id=5, line="T7")])
    story.await_records({fares: len(versions), rides: len(FARES_BY_RIDE)})
    story.pull(f"{fares} {rides} --set-watermark 2026-05-04T13:00:00Z")
    story.pull(f"{priced} {paid}")
    rows = [(row["id"], row["fare"]) for row in story.tail(priced)]
    assert sorted(rows) == list(FARES_BY_RIDE.items())
    rows = [(row["id"], row["fare"]) for row in story.tail(paid)]
    assert sorted(rows) == [(id_, fare) for id_, fare in FARES_BY_RIDE.items() if fare is not None]
    assert [one["verdict"] for one in story.verify(f"{priced} {paid}")] == ["valid"] * 2


def test_windows_over_a_copy_pause_at_the_first_retraction_of_its_owner(story: Story, tmp_path: Path) -> None:
    lamps, url = "lamps.readings", (tmp_path / "published").as_uri()
    story.add(root(lamps, LAMPS))
    story.ingest(lamps, [at("08:10", lamp=1, watts=40), at("08:20", lamp=2, watts=60)])
    story.node.run(f"push {lamps} --to {url}")
    reader = Story(story.node.guest(tmp_path / "reader", {"ODF_FETCH_NETWORKS": "127.0.0.0/8"}))
    reader.node.up("ingest", "coordinator", "verifier", "sync")
    try:
        reader.node.run(f"pull {url} --as {lamps}")
        reader.add(
            derivative("lamps.hourly", {"lamps": lamps}, HOURLY),
            derivative("lamps.bright", {"lamps": lamps}, "SELECT * FROM lamps WHERE watts > 50"),
        )
        reader.pull("lamps.hourly lamps.bright")

        upserts = {"kind": "UpsertStream", "primaryKey": ["lamp"]}
        source = root(lamps, LAMPS, merge=upserts)["content"]["metadata"][0]
        story.node.run(f"commit {lamps} -", stdin=json.dumps(source).encode())
        story.ingest(lamps, [at("09:10", lamp=2, watts=70)])
        story.node.run(f"push {lamps} --to {url}")
        reader.node.run(f"pull {url} --as {lamps}")

        reader.node.eventually(lambda: reader.summary("lamps.hourly")["problem"])
        (row,) = reader.node.run("status lamps.hourly --output json")
        assert "lamps, offset 2 (-C) takes back a record" in row["problem"]
        assert "write SELECT /*+ CHANGES */" in row["problem"]
        assert "`odf reset lamps.hourly 0 --yes`" in row["remedy"]
        reader.pull("lamps.bright")
        assert [one["watts"] for one in reader.tail("lamps.bright")] == [60, 60, 70]
        assert reader.summary("lamps.bright")["problem"] is None

        reader.node.run("reset lamps.hourly 0 --yes")
        changes = derivative(
            "lamps.hourly", {"lamps": lamps}, HOURLY.replace("SELECT", "SELECT /*+ CHANGES */")
        )
        reader.node.run("add - --replace", stdin=as_text(changes))
        reader.pull("lamps.hourly")
        left = Counter[object]()
        for one in reader.tail("lamps.hourly"):
            left[one["watts"]] += 1 if one["op"] in (0, 3) else -1
        assert +left == {40: 1, 70: 1}
        assert reader.summary("lamps.hourly")["problem"] is None
    finally:
        reader.node.down()
