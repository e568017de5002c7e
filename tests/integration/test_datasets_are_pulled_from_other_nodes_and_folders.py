import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from odf_testing.chains import assert_objects_are_whole, flip, overwrite, read_chain
from odf_testing.embedded import CommandFailed, EmbeddedNode
from odf_testing.story import Row, Story, derivative, root
from odf_testing.webserver import serving

VECTORS = Path(__file__).parents[1] / "vectors" / "datasets"
COLUMNS = ("id BIGINT", "text STRING", "at TIMESTAMP(3)")


@pytest.fixture(scope="module")
def reader(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Another node, with the parts that a reader of datasets needs."""
    made = node.guest(tmp_path_factory.mktemp("reader"))
    made.up("coordinator", "sync", "verifier")
    yield Story(made)
    made.down()


@pytest.fixture
def notes(story: Story, request: pytest.FixtureRequest) -> str:
    """A root with two batches, used by this test only."""
    name: str = "notes." + request.node.name[5:45].strip("_").replace("_", "-")
    story.add(root(name, COLUMNS, event_time="at"))
    story.ingest(name, some(0, 100))
    story.ingest(name, some(100, 50))
    return name


def some(first: int, count: int) -> list[Row]:
    """Records with these ids."""
    return [
        {"id": id_, "text": f"note {id_}", "at": f"2026-01-01T00:{id_ // 60 % 60:02}:{id_ % 60:02}Z"}
        for id_ in range(first, first + count)
    ]


def test_a_root_and_its_derivative_are_pulled_over_http_and_verified_by_the_reader(
    story: Story, reader: Story, notes: str
) -> None:
    even = f"{notes}.even"
    story.add(
        derivative(even, {"notes": notes}, "SELECT at AS event_time, id, text FROM notes WHERE id % 2 = 0")
    )
    story.pull(even)
    for name in (notes, even):
        pulled = reader.pull(f"{story.node.node.http}/{name}")[name]
        assert (pulled["state"], pulled["head"]) == ("updated", story.summary(name)["head"])
        assert pulled["records"] == story.records(name)[0]
        assert read_chain(reader.folder(name)).table == story.chain(name).table
        assert reader.tail(name) == story.tail(name)
    verdicts = reader.verify(f"{notes} {even}")
    assert [one["verdict"] for one in verdicts] == ["valid", "valid"]
    assert verdicts[1]["transforms"] > 0, "the derivative was replayed here"


def test_a_derivative_is_pulled_without_data_and_computed_by_the_reader(
    story: Story, reader: Story, notes: str
) -> None:
    odd, http = f"{notes}.odd", story.node.node.http
    story.add(
        derivative(odd, {"notes": notes}, "SELECT at AS event_time, id, text FROM notes WHERE id % 2 = 1")
    )
    story.pull(odd)
    before, tail = files_of(story, odd), story.tail(odd)
    story.node.run(f"system drop-data {odd} --yes")

    pulled = reader.pull(f"{http}/{odd}")[odd]
    assert (pulled["state"], pulled["missingFiles"]) == ("updated", len(before))
    assert pulled["missingInputs"] == [f"{story.summary(notes)['id']} (notes)"]
    assert reader.verify(odd, code=1)[0]["verdict"] == "dropped"
    assert f"this node lacks inputs, or blocks of them: {story.summary(notes)['id']}" in reader.node.fails(
        f"pull {odd}"
    )

    reader.pull(f"{http}/{notes}")
    rebuilt = reader.pull(odd)[odd]
    assert (rebuilt["state"], rebuilt["missingFiles"]) == ("rebuilt", 0)
    assert files_of(reader, odd) == before
    assert reader.tail(odd) == tail
    assert [one["verdict"] for one in reader.verify(f"{notes} {odd}")] == ["valid", "valid"]
    assert reader.pull(odd)[odd]["state"] == "up-to-date"


def files_of(story: Story, dataset: str) -> dict[str, bytes]:
    """Return the slices and checkpoints of a dataset by name."""
    folder = story.folder(dataset)
    kinds = (folder / "data", folder / "checkpoints")
    return {file.name: file.read_bytes() for kind in kinds if kind.exists() for file in kind.iterdir()}


def test_a_pull_fetches_only_new_blocks(story: Story, reader: Story, notes: str) -> None:
    with serving(story.folder(notes).parent) as server:
        url = f"{server.url}/{story.folder(notes).name}"
        first = reader.pull(f"{url} --as {notes}")[notes]
        assert (first["state"], first["records"]) == ("updated", 150)
        known = {file.name for file in reader.folder(notes).rglob("f1620*")}
        story.ingest(notes, some(150, 25))
        server.asked.clear()
        second = reader.pull(f"{url} --as {notes} --trust-records")[notes]
        assert (second["state"], second["records"], second["blocks"]) == ("updated", 25, 1)
        objects = {path.rpartition("/")[2] for path in server.asked} - {"head"}
        assert objects.isdisjoint(known)
        assert len(objects) == 2, "one block and one slice"
        assert reader.verify(notes)[0]["verdict"] == "valid"
        server.asked.clear()
        third = reader.pull(f"{url} --as {notes}")[notes]
        assert (third["state"], third["records"], third["blocks"]) == ("up-to-date", 0, 0)
        assert all(path.endswith("refs/head") for path in server.asked)
    assert reader.summary(notes)["head"] == story.summary(notes)["head"]


def test_a_copy_is_pulled_by_its_name_from_its_source_repository(
    story: Story, reader: Story, notes: str
) -> None:
    http = story.node.node.http
    reader.node.run(f"repo add First {http}")
    assert "named first" in reader.node.fails(f"repo add first {http}")
    assert reader.node.run("repo list --output json") == [
        {"name": "first", "url": f"{http}/", "problem": None}
    ]
    (found,) = reader.node.run(f"search {notes} --repo first --output json")
    assert (found["dataset"], found["id"]) == (f"first/{notes}", story.summary(notes)["id"])
    assert reader.pull(f"first/{notes}")[notes]["records"] == 150
    assert [one["dataset"] for one in reader.node.run(f"search {notes} --output json")] == [
        notes,
        f"first/{notes}",
    ]
    assert reader.node.run(f"alias list {notes} --output json") == [
        {"dataset": notes, "kind": "pull", "location": f"first/{notes}"}
    ]
    dataset_id = story.summary(notes)["id"]
    assert reader.pull(f"first/{dataset_id}")[notes]["state"] == "up-to-date"
    assert reader.node.run(f"compare {notes} first/{notes} --output json")["relation"] == "equal"

    for records, pulled in enumerate((notes, f"{notes[:-1]}%", dataset_id), 1):
        story.ingest(notes, some(150 + records, 1))
        row = reader.pull(pulled)[notes]
        assert (row["state"], row["records"], row["blocks"]) == ("updated", 1, 1)

    reader.node.run("repo delete first")
    assert "repository first does not exist" in reader.node.fails(f"pull {notes}")
    reader.node.run(f"alias delete {notes} --pull first/{notes}")
    assert "is a copy; only the node that has" in reader.node.fails(f"pull {notes}")


def test_a_folder_is_pulled_under_the_requested_name(
    story: Story, reader: Story, notes: str, tmp_path: Path
) -> None:
    folder = story.copy(notes, tmp_path / "given.name")
    pulled = reader.pull(folder.as_uri())["given.name"]
    assert pulled["head"] == story.summary(notes)["head"]
    assert read_chain(reader.folder("given.name")).rows() == story.chain(notes).rows()
    assert reader.verify("given.name")[0]["verdict"] == "valid"
    # The same dataset under a second name would be two names for one chain.
    assert "given.name" in reader.node.fails(f"pull {folder.as_uri()} --as second.name")


def test_a_name_that_another_dataset_has_is_refused(
    story: Story, reader: Story, notes: str, tmp_path: Path
) -> None:
    reader.pull((VECTORS / "polled.weather").as_uri() + " --as taken.name")
    folder = story.copy(notes, tmp_path / "taken.name")
    before = reader.summary("taken.name")
    reader.node.fails(f"pull {folder.as_uri()}")
    assert reader.summary("taken.name") == before
    reader.node.run("delete taken.name --yes")


@pytest.mark.parametrize("name", ["cities.population", "polled.weather"])
def test_a_dataset_of_another_implementation_is_pulled_listed_tailed_and_verified(
    reader: Story, name: str
) -> None:
    expected = json.loads((VECTORS / f"{name}.rows.json").read_text())
    pulled = reader.pull((VECTORS / name).as_uri())[name]
    assert pulled["head"] == (VECTORS / name / "refs" / "head").read_text().strip()
    assert pulled["records"] == len(expected)
    summary = reader.summary(name)
    assert (summary["kind"], summary["records"], summary["watermark"]) == (
        "Root",
        len(expected),
        "2026-01-03T00:00:00Z",
    )
    assert reader.tail(name) == expected
    verdict = reader.verify(name)[0]
    assert (verdict["verdict"], verdict["problems"]) == ("valid", [])
    assert len(reader.node.run(f"log {name} --output json")) == summary["blocks"]
    log = reader.node.run(f"log {name} --output yaml")
    assert documents(log) == documents((VECTORS / f"{name}.log.yaml").read_text())


def test_a_pulled_dataset_is_an_input_like_any_other(story: Story, tmp_path: Path) -> None:
    story.pull((VECTORS / "cities.population").as_uri() + " --as cities")
    story.add(
        derivative(
            "cities.large",
            {"cities": "cities"},
            "SELECT event_time, city, population FROM cities WHERE population > 1000000",
        )
    )
    story.pull("cities.large")
    expected = [
        row
        for row in json.loads((VECTORS / "cities.population.rows.json").read_text())
        if row["population"] > 1_000_000
    ]
    assert [(row["op"], row["city"]) for row in story.tail("cities.large")] == [
        (row["op"], row["city"]) for row in expected
    ]
    assert story.verify("cities.large")[0]["verdict"] == "valid"


def test_a_repository_that_has_diverged_is_refused(
    story: Story, reader: Story, notes: str, tmp_path: Path
) -> None:
    url = f"{story.node.node.http}/{notes}"
    fork_at = str(story.chain(notes).blocks[-2][0])
    reader.pull(url)
    before = reader.summary(notes)
    story.node.run(f"reset {notes} {fork_at} --yes")
    story.ingest(notes, some(500, 10))
    said = reader.node.fails(f"pull {url}")
    assert f"follow the last common block {fork_at}" in said
    assert (
        "look at the other chain with `odf pull URL --as NAME@REF`; `odf pull URL --force` replaces" in said
    )
    assert reader.summary(notes) == before
    assert reader.verify(notes)[0]["verdict"] == "valid"
    assert_objects_are_whole(reader.folder(notes))


def test_a_repository_that_is_behind_changes_nothing(
    story: Story, reader: Story, notes: str, tmp_path: Path
) -> None:
    folder = story.copy(notes, tmp_path / "old")
    story.ingest(notes, some(150, 1))
    reader.pull(f"{story.node.node.http}/{notes}")
    with pytest.raises(CommandFailed, match="the local chain is ahead: it has 1 block more than that at"):
        reader.pull(f"{folder.as_uri()} --as {notes}")
    assert reader.records(notes) == [151]


def documents(log: str) -> list[tuple[str, object]]:
    """Return the blocks of a log with their hashes, however it quotes and indents."""
    hashes = [line for line in log.splitlines() if line.startswith("# Block: ")]
    # The base loader leaves every scalar as text.
    return list(zip(hashes, yaml.load_all(log, Loader=yaml.BaseLoader), strict=True))


def head_of(folder: Path) -> str:
    return (folder / "refs" / "head").read_text().strip()


def lost_slice(folder: Path) -> None:
    min((folder / "data").iterdir()).unlink()


def cut_slice(folder: Path) -> None:
    file = min((folder / "data").iterdir())
    overwrite(file, file.read_bytes()[:-7])


def grown_slice(folder: Path) -> None:
    file = min((folder / "data").iterdir())
    overwrite(file, file.read_bytes() + b"more")


def lost_block(folder: Path) -> None:
    min(set((folder / "blocks").iterdir()) - {folder / "blocks" / head_of(folder)}).unlink()


def exchanged_blocks(folder: Path) -> None:
    first, second = sorted((folder / "blocks").iterdir())[:2]
    held = first.read_bytes()
    overwrite(first, second.read_bytes())
    overwrite(second, held)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a flipped byte in a slice": lambda folder: flip(min((folder / "data").iterdir())),
    "a flipped byte in the newest block": lambda folder: flip(folder / "blocks" / head_of(folder)),
    "a flipped byte in an old block": lambda folder: flip(min((folder / "blocks").iterdir())),
    "a lost slice": lost_slice,
    "a slice cut short": cut_slice,
    "a slice that is too long": grown_slice,
    "a lost block": lost_block,
    "two blocks exchanged": exchanged_blocks,
    "a head that leads nowhere": lambda folder: overwrite(folder / "refs" / "head", b"f1620" + b"00" * 32),
    "a head that is not a hash": lambda folder: overwrite(folder / "refs" / "head", b"../../etc/passwd"),
    "no head": lambda folder: (folder / "refs" / "head").unlink(),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_repository_is_refused_and_nothing_of_it_is_visible(
    story: Story, reader: Story, kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(VECTORS / "cities.population", folder)
    # The reader knows its id under its own name, or not at all: then nothing of it may appear.
    if reader.find("cities.population") is not None:
        reader.node.run("delete cities.population --yes")
    DAMAGES[kind](folder)
    said = reader.node.fails(f"pull {folder.as_uri()}", code=3 if kind in FOUND_BY_HASH else 1)
    assert "error:" in said
    assert "Traceback" not in said
    assert reader.find("damaged") is None
    for left in (reader.node.home / "datasets").iterdir():
        assert_objects_are_whole(left)
    shutil.rmtree(folder)
    shutil.copytree(VECTORS / "cities.population", folder)
    assert reader.pull(folder.as_uri())["damaged"]["state"] == "updated"
    assert reader.verify("damaged")[0]["verdict"] == "valid"
    reader.node.run("delete damaged --yes")


FOUND_BY_HASH = {
    "a flipped byte in a slice",
    "a flipped byte in the newest block",
    "a flipped byte in an old block",
    "two blocks exchanged",
    "a slice cut short",
    "a lost block",
    "a head that leads nowhere",
}


def test_damage_in_new_blocks_leaves_the_local_copy_unchanged(
    story: Story, reader: Story, notes: str, tmp_path: Path
) -> None:
    reader.pull(f"{story.node.node.http}/{notes}")
    before = reader.summary(notes)
    old = {file.name for file in story.folder(notes).glob("data/*")}
    story.ingest(notes, some(150, 25))
    folder = story.copy(notes, tmp_path / "damaged")
    (new,) = (file for file in folder.glob("data/*") if file.name not in old)
    flip(new)
    said = reader.node.fails(f"pull {folder.as_uri()} --as {notes}", code=3)
    assert new.name in said
    assert reader.summary(notes) == before
    assert reader.verify(notes)[0]["verdict"] == "valid"
    assert not (reader.folder(notes) / "data" / new.name).exists()
    assert reader.pull(f"{story.node.node.http}/{notes}")[notes]["records"] == 25


def test_a_dataset_is_pushed_refused_when_it_diverged_and_replaced_by_force(
    story: Story, reader: Story, notes: str
) -> None:
    there = f"odf+{reader.node.node.http}/{notes}"
    assert "updated" in story.node.run(f"push {notes} --to {there}")
    assert reader.tail(notes) == story.tail(notes)
    common = story.summary(notes)["head"]
    story.ingest(notes, some(150, 25))
    assert "updated" in story.node.run(f"push {notes}"), "the place is remembered"
    story.node.run(f"reset {notes} {common} --yes")
    story.ingest(notes, some(200, 10))

    assert str(common) in story.node.fails(f"push {notes} --to {there}")
    story.node.run(f"push {notes} --to {there} --force")

    assert reader.tail(notes) == story.tail(notes)
    assert reader.verify(notes)[0]["verdict"] == "valid"
    pulled = reader.pull(f"odf+{story.node.node.http}/{notes}")[notes]
    assert pulled["state"] == "up-to-date"


def test_addresses_that_name_no_repository_are_refused(reader: Story, tmp_path: Path) -> None:
    assert "does not exist" in reader.node.fails(f"pull {(tmp_path / 'nothing').as_uri()}")
    assert "ftp" in reader.node.fails("pull ftp://127.0.0.1/notes")
    assert "reached" in reader.node.fails("pull http://127.0.0.1:9/notes")
    assert reader.find("nothing") is None
    assert reader.find("notes") is None
