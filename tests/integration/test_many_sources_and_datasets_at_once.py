import json
import threading

from odf_testing.story import Row, Sender, Story, derivative, ledger, root

COLUMNS = ("id BIGINT", "place STRING", "at TIMESTAMP(3)")
MINUTELY = "SELECT window.start AS event_time, count(*) AS n, sum(id) AS total FROM visits GROUP BY window(at, '1 minute')"


def some(first: int, count: int) -> list[Row]:
    """Records with these ids, a second apart."""
    return [
        {"id": id_, "place": f"p{id_ % 3}", "at": f"2026-01-01T00:{id_ // 60 % 60:02}:{id_ % 60:02}Z"}
        for id_ in range(first, first + count)
    ]


def test_several_sources_of_one_dataset_are_all_read(story: Story) -> None:
    sources = ("north", "south", "east")
    story.add(root("sources", COLUMNS, merge=ledger("id"), event_time="at", sources=sources))
    assert len({story.topic("sources", source) for source in sources}) == 3
    for number, source in enumerate(sources):
        story.publish("sources", some(1000 * number, 200), source)
    # The same records by another source: the ledger knows them.
    story.publish("sources", some(0, 50), "south")
    story.pull("sources")
    chain = story.chain("sources")
    assert sorted(chain.column("id")) == [*range(200), *range(1000, 1200), *range(2000, 2200)]
    # The order of each source is kept.
    for number in range(3):
        mine = [id_ for id_ in chain.column("id") if id_ // 1000 == number]
        assert mine == sorted(mine)
    assert "source" in story.node.fails("ingest sources -", stdin=b'{"id": 1}')
    pushed = story.ingest("sources", some(5000, 10), "--source east")
    assert pushed["records"] == 10


def test_several_datasets_take_records_at_the_same_time(story: Story) -> None:
    names = [f"at.once.{number}" for number in range(6)]
    story.add(*(root(name, COLUMNS, event_time="at") for name in names))
    topics = [story.topic(name) for name in names]

    def feed(topic: str) -> None:
        sender = Sender(story.node)
        for first in range(0, 1000, 100):
            sender.send(topic, [json.dumps(row).encode() for row in some(first, 100)])

    threads = [threading.Thread(target=feed, args=(topic,), daemon=True) for topic in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    story.await_records(dict.fromkeys(names, 1000))
    for name in names:
        assert story.chain(name).column("id") == list(range(1000))


def test_derivatives_of_derivatives_follow_automatically(story: Story) -> None:
    story.add(
        root("deep", COLUMNS, event_time="at"),
        derivative("deep.1", {"d": "deep"}, "SELECT at AS event_time, id, place FROM d WHERE id % 2 = 0"),
        derivative("deep.2", {"d": "deep.1"}, "SELECT event_time, id, place FROM d WHERE id % 3 = 0"),
        derivative("deep.3", {"visits": "deep.2"}, MINUTELY.replace("at,", "event_time,")),
        derivative("deep.4", {"d": "deep.3"}, "SELECT event_time, total FROM d WHERE n > 0"),
    )
    for first in range(0, 600, 200):
        story.publish("deep", some(first, 200))
    story.await_records({"deep": 600, "deep.1": 300, "deep.2": 100})
    story.pull("deep --set-watermark 2026-01-01T00:10:00Z")
    story.await_records({"deep.3": 10, "deep.4": 10})
    kept = [id_ for id_ in range(600) if id_ % 6 == 0]
    expected = [sum(id_ for id_ in kept if id_ // 60 == minute) for minute in range(10)]
    assert story.chain("deep.4").column("total") == expected
    names = " ".join(f"deep.{number}" for number in range(1, 5))
    assert {row["state"] for row in story.pull(f"deep {names}").values()} == {"up-to-date"}
    assert {one["verdict"] for one in story.verify("deep.4 --recursive")} == {"valid"}
    lineage = story.node.run("inspect lineage deep.4 --output json")
    assert [row["dataset"] for row in lineage] == ["deep.4", "deep.3", "deep.2", "deep.1", "deep"]
    said = story.node.fails("delete deep --yes")
    assert "deep.1" in said


def test_a_derivative_added_later_reads_all_existing_records(story: Story) -> None:
    story.add(root("early", COLUMNS, event_time="at"))
    for first in range(0, 300, 100):
        story.ingest("early", some(first, 100))
    story.add(derivative("late.comer", {"d": "early"}, "SELECT at AS event_time, id FROM d"))
    story.await_records({"late.comer": 300})
    assert story.chain("late.comer").column("id") == list(range(300))


def test_set_watermark_closes_windows_and_never_goes_back(story: Story) -> None:
    story.add(
        root("closing", COLUMNS, event_time="at"),
        derivative("closing.minutely", {"visits": "closing"}, MINUTELY),
    )
    story.ingest("closing", some(0, 90))
    story.pull("closing.minutely")
    # As far as is known, the second minute has not ended.
    assert story.chain("closing.minutely").column("n") == [60]
    set_ = story.pull("closing --set-watermark 2026-01-01T00:02:00Z")["closing"]
    assert (set_["state"], set_["blocks"], set_["records"]) == ("updated", 1, 0)
    assert story.summary("closing")["watermark"] == "2026-01-01T00:02:00Z"
    story.pull("closing.minutely")
    assert story.chain("closing.minutely").column("n") == [60, 30]
    assert story.pull("closing --set-watermark 2026-01-01T00:02:00Z")["closing"]["state"] == "up-to-date"
    assert story.summary("closing")["watermark"] == "2026-01-01T00:02:00Z"
    assert story.node.fails("pull closing.minutely --set-watermark 2026-01-01T00:02:00Z")
    assert story.verify("closing.minutely")[0]["verdict"] == "valid"


def test_pull_all_with_nothing_to_do_ends_well(story: Story) -> None:
    story.add(root("idle", COLUMNS, event_time="at"))
    story.node.run("pull --all")
    assert story.pull("--all")["idle"]["state"] == "up-to-date"
    assert story.pull("idle")["idle"]["state"] == "up-to-date"


def test_a_topic_that_was_replaced_stops_its_source_alone_until_it_is_accepted(story: Story) -> None:
    story.add(root("replaced", COLUMNS, event_time="at"), root("untouched", COLUMNS, event_time="at"))
    topic = story.topic("replaced")
    story.publish("replaced", some(0, 10))
    story.pull("replaced")
    topics = story.node.topics()
    topics.delete_topic(topic)
    topics.create_push_topic(topic)
    story.forget()
    story.publish("replaced", some(100, 5))
    story.publish("untouched", some(0, 10))
    story.await_records({"untouched": 10})
    assert "odf source resume replaced --source default --from earliest" in story.node.fails("pull replaced")

    def source() -> Row:
        (found,) = story.node.run("source show replaced --output json")
        return dict(found)

    story.node.eventually(lambda: source()["state"] == "stopped")
    status = str(story.node.run("status --output json"))
    # It may have been inspected between its deletion and its re-creation.
    assert "TopicReplaced" in status or "TopicGone" in status, status
    (resumed,) = story.node.run("source resume replaced --from earliest --output json")
    assert (resumed["state"], resumed["advice"]) == ("reading", None)
    story.pull("replaced")
    assert story.chain("replaced").column("id") == [*range(10), *range(100, 105)]
    assert source()["next"] == {"0": 5}
    story.node.run("source set replaced badRecords=stop --output json")
    story.publish("replaced", [b"{", *some(200, 5)])
    story.node.eventually(lambda: source()["state"] == "stopped")
    skipped = story.node.run("source skip replaced --output json")
    assert (skipped["skipped"], skipped["offset"]) == (True, 5)
    story.await_records({"replaced": 20})
    assert {one["verdict"] for one in story.verify("replaced")} == {"valid"}
