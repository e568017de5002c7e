import json
from collections import Counter
from pathlib import Path

from odf_testing.story import Manifest, Row, Story, derivative, root

from odf_common.metadata.events import ExecuteTransform, SetTransform

COLUMNS = ("id BIGINT", "city STRING", "event_time TIMESTAMP(3)")
NAMED = "SELECT event_time, id, city FROM a"
RUNS = 8


class Diamond:
    """A root A, B and C derived from it, and D from both; the names begin with `prefix`."""

    def __init__(self, story: Story, prefix: str) -> None:
        """Make the datasets."""
        self.story = story
        self.a, self.b, self.c, self.d = (f"{prefix}.{name}" for name in "abcd")
        both = " UNION ALL ".join(f"SELECT event_time, id, city FROM {one}" for one in "bc")
        story.add(
            root(self.a, COLUMNS),
            derivative(self.b, {"a": self.a}, NAMED),
            derivative(self.c, {"a": self.a}, "SELECT * FROM a"),
            derivative(self.d, {"b": self.b, "c": self.c}, both),
        )

    def ingest(self, *ids: int, **more: object) -> None:
        """Ingest records, and derive from them."""
        self.story.ingest(self.a, [record(number, **more) for number in ids])
        self.story.pull(f"{self.d} --recursive")

    def commit(self, dataset: str, event: Manifest) -> None:
        """Commit a metadata event."""
        self.story.node.run(f"commit {dataset} -", stdin=json.dumps(event).encode())

    def ids(self, dataset: str) -> list[int]:
        """Return the id of each record, ascending."""
        return sorted(self.story.chain(dataset).column("id"))

    def require_valid(self) -> None:
        """Raise unless all derived data is correct, and replays to the same."""
        verdicts = self.story.verify(f"{self.b} {self.c} {self.d}")
        assert [(one["verdict"], one["problems"]) for one in verdicts] == [("valid", [])] * 3
        assert all(one["transforms"] for one in verdicts)


def record(number: int, **more: object) -> Row:
    return {"id": number, "city": f"city {number}", "event_time": f"2026-01-01T00:{number:02}:00Z", **more}


def query(dataset: str, text: str, alias: str = "a") -> Manifest:
    """Return a new query of a derivative of `dataset`, named `alias` in it."""
    transform = {"kind": "Sql", "engine": "spark", "query": text}
    inputs = [{"datasetRef": dataset, "alias": alias}]
    return {"kind": "SetTransform", "inputs": inputs, "transform": transform}


def test_paths_that_join_again_deliver_every_record_once_each(story: Story) -> None:
    diamond = Diamond(story, "meet")
    expected = [number for run in range(RUNS) for number in range(run * 40, run * 40 + 40)]
    for run in range(RUNS):
        messages = [{**record(number % 60), "id": number} for number in expected[run * 40 : run * 40 + 40]]
        story.publish(diamond.a, messages)
    size = len(expected)
    story.await_records({diamond.a: size, diamond.b: size, diamond.c: size, diamond.d: 2 * size})

    assert diamond.ids(diamond.b) == diamond.ids(diamond.c) == expected
    assert Counter(diamond.ids(diamond.d)) == Counter(expected * 2)
    diamond.require_valid()


def test_columns_come_from_inputs_and_new_queries_and_the_past_replays(story: Story) -> None:
    diamond = Diamond(story, "wider")
    diamond.ingest(1, 2)
    source = root(diamond.a, (*COLUMNS, "amount INT"))["content"]["metadata"][0]
    diamond.commit(diamond.a, source)
    diamond.ingest(3, amount=30)

    assert story.chain(diamond.c).column("amount") == [None, None, 30]
    assert "amount" not in story.tail(diamond.b)[0]
    assert story.records(diamond.b, diamond.c, diamond.d) == [3, 3, 6]

    for broken in ("event_time, id", "event_time, id, city AS town", "event_time, id, id AS city"):
        text = json.dumps(query(diamond.a, f"SELECT {broken} FROM a"))
        assert "column city" in story.node.fails(f"commit {diamond.b} -", stdin=text.encode())
    diamond.commit(diamond.b, query(diamond.a, "SELECT event_time, id, city, amount FROM x", alias="x"))
    diamond.ingest(4, amount=40)

    chain = story.chain(diamond.b)
    assert chain.column("amount") == [None, None, None, 40]
    events = [block.event for _, block in chain.blocks]
    at = max(number for number, event in enumerate(events) if isinstance(event, SetTransform))
    migration = events[at + 1]
    assert isinstance(migration, ExecuteTransform), "watermarks go with their input, whatever it is called"
    assert [step.new_block_hash for step in migration.query_inputs] == [None]
    diamond.require_valid()


def test_open_windows_continue_under_a_new_query(story: Story) -> None:
    counted = "SELECT window.start AS event_time, count(*) AS n{more} FROM {name} GROUP BY window(event_time, '{size}')"
    story.add(
        root("open.a", COLUMNS),
        derivative("open.w", {"a": "open.a"}, counted.format(more="", name="a", size="10 minutes")),
    )
    story.ingest("open.a", [record(1), record(2)])
    story.pull("open.w")
    head = story.summary("open.w")["head"]

    longer = query("open.a", counted.format(more="", name="a", size="1 hour"))
    said = story.node.fails("commit open.w -", stdin=json.dumps(longer).encode())
    assert "cannot be migrated" in said
    assert story.summary("open.w")["head"] == head, "nothing is committed"
    wider = query("open.a", counted.format(more=", sum(id) AS total", name="x", size="10 minutes"), alias="x")
    story.node.run("commit open.w -", stdin=json.dumps(wider).encode())
    story.ingest("open.a", [record(3), record(15)])
    story.pull("open.a --set-watermark 2026-01-01T00:20:00Z")
    story.pull("open.w")

    chain = story.chain("open.w")
    assert list(zip(chain.column("n"), chain.column("total"), strict=True)) == [(3, 6), (1, 15)]
    (verdict,) = story.verify("open.w")
    assert (verdict["verdict"], verdict["problems"]) == ("valid", [])


def test_a_reset_of_an_input_rolls_back_its_derivatives(story: Story) -> None:
    diamond = Diamond(story, "back")
    diamond.ingest(1, 2)
    kept = story.summary(diamond.a)["head"]
    diamond.ingest(3)

    assert "--force" in story.node.fails(f"reset {diamond.a} {kept} --yes")
    story.node.run(f"reset {diamond.a} {kept} --yes --force")
    story.ingest(diamond.a, [record(4)])

    story.node.eventually(lambda: "no longer in its chain" in (story.summary(diamond.b)["problem"] or ""))
    assert "odf pull --reset-derivatives" in story.node.fails(f"pull {diamond.b}")
    assert diamond.ids(diamond.b) == [1, 2, 3], "it is stalled"
    (verdict,) = story.verify(diamond.b, code=3)
    assert [one["kind"] for one in verdict["problems"]] == ["input-diverged"]
    story.pull(f"--reset-derivatives {diamond.a}")

    assert [diamond.ids(one) for one in (diamond.b, diamond.c)] == [[1, 2, 4]] * 2
    assert diamond.ids(diamond.d) == [1, 1, 2, 2, 4, 4]
    assert not story.summary(diamond.b)["problem"]
    diamond.require_valid()


def objects(folder: Path) -> dict[str, bytes]:
    """Return slices and checkpoints by their names."""
    return {
        f"{kind}/{file.name}": file.read_bytes()
        for kind in ("data", "checkpoints")
        for file in (folder / kind).iterdir()
    }


def test_dropped_data_is_rebuilt_bit_for_bit(story: Story) -> None:
    diamond = Diamond(story, "drop")
    for number in range(3):
        diamond.ingest(number)
    folder, head = story.folder(diamond.d), story.summary(diamond.d)["head"]
    before = objects(folder)
    transforms = [
        event for _, one in story.chain(diamond.d).blocks if isinstance(event := one.event, ExecuteTransform)
    ]

    assert "is a root" in story.node.fails(f"system drop-data {diamond.a} --yes")
    for dataset in (diamond.d, diamond.b):
        story.node.run(f"system drop-data {dataset} --yes")

    assert objects(folder) == {}
    assert [story.summary(one)["dropped"] for one in (diamond.a, diamond.b, diamond.d)] == [False, True, True]
    assert [one["verdict"] for one in story.verify(f"{diamond.b} {diamond.d}", code=1)] == ["dropped"] * 2
    for line in (f"tail {diamond.d}", f"sql -c 'SELECT * FROM `{diamond.d}`'"):
        assert f"`odf pull {diamond.d}`" in story.node.fails(line)
    assert f"`odf pull {diamond.b}`" in story.node.fails(f"pull {diamond.d}")
    rows = story.pull(f"{diamond.d} --recursive")

    assert [rows[one]["state"] for one in (diamond.b, diamond.c, diamond.d)] == [
        "rebuilt",
        "up-to-date",
        "rebuilt",
    ]
    assert objects(folder) == before
    assert len(transforms) >= 3
    assert story.summary(diamond.d)["head"] == head
    diamond.require_valid()
