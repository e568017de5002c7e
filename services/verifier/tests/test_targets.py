"""Which datasets a verification covers."""

from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_dataset, a_derivative, a_seed, a_step, a_transform, some_result
from odf_testing.node_datasets import in_memory
from odf_testing.verifier import Story

from odf_common.chain.state import ChainState
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
from odf_common.metadata.events import DatasetKind
from odf_common.ports.store import CatalogEntry
from odf_verifier.targets import targets


@pytest.fixture
def datasets() -> NodeDatasets:
    """Have names only: no dataset can be read."""
    made = in_memory()
    for alias in ("flights", "flights.late", "me/flights.hourly", "weather"):
        made.catalog.add(CatalogEntry(alias=alias, dataset_id=generate().dataset_id))
    return made


def names(datasets: NodeDatasets, *refs: str) -> list[str]:
    return [target.name for target in targets(datasets, refs, every=False, recursive=False)]


def test_a_pattern_covers_unreadable_datasets_too(datasets: NodeDatasets) -> None:
    assert names(datasets, "FLIGHTS.%") == ["flights.late", "me/flights.hourly"]
    assert names(datasets, "weather", "%flights%", "flights") == [
        "weather", "flights", "flights.late", "me/flights.hourly",
    ]  # fmt: skip


def test_a_pattern_without_a_match_is_an_error(datasets: NodeDatasets) -> None:
    with pytest.raises(NotFound, match=r"no dataset has a name that matches trains\.%"):
        names(datasets, "flights", "trains.%")
    with pytest.raises(InvalidInput, match="% matches anything"):
        names(datasets, "flights..%")


def test_inputs_are_those_of_the_reference() -> None:
    story = Story()
    for alias in ("cities", "towns"):
        story.put(a_chain(a_seed(dataset=a_dataset(alias))), name=alias)
    chain = a_derivative(a_dataset("cities"))
    story.put(chain, name="report")
    chain.add(a_transform(a_dataset("towns")))
    story.put(chain, ref="next")

    def found(*refs: str) -> list[str]:
        return [target.name for target in targets(story.datasets, refs, every=False, recursive=True)]

    assert found("report") == ["cities", "report"]
    assert found("report@next") == ["towns", "report@next"]
    assert found("report", "report@next") == ["cities", "report", "towns", "report@next"]


def test_what_was_read_by_an_earlier_query_is_an_input_too() -> None:
    story, cities = Story(), a_dataset("cities")
    for alias in ("cities", "towns"):
        story.put(a_chain(a_seed(dataset=a_dataset(alias))), name=alias)
    chain = a_derivative(cities)
    chain.add(
        some_result(chain.state, a_step(chain.state, cities, "head", 9)), a_transform(a_dataset("towns"))
    )
    story.put(chain, name="report")

    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["cities", "towns", "report"]


def test_inputs_are_left_out_unless_they_are_asked_for_and_all_datasets_are_each_listed_once() -> None:
    story = Story()
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="towns")
    story.put(a_derivative(a_dataset("cities")), name="report")
    story.catalog.add(CatalogEntry(alias="empty", dataset_id=a_dataset("empty")))

    assert names(story.datasets, "report") == ["report"]
    for recursive in (False, True):
        found = targets(story.datasets, (), every=True, recursive=recursive)
        assert [target.name for target in found] == ["empty", "report", "towns"]
        assert {target.ref for target in found} == {"head"}


def test_inputs_of_inputs_come_first_and_each_once() -> None:
    story = Story()
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="cities")
    for name, inputs in (("daily", ["cities"]), ("hourly", ["cities"]), ("report", ["daily", "hourly"])):
        seed = a_seed(DatasetKind.Derivative, a_dataset(name))
        story.put(a_chain(seed, a_transform(*map(a_dataset, inputs))), name=name)

    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["cities", "daily", "hourly", "report"]


def test_datasets_that_read_each_other_are_each_listed_once() -> None:
    story = Story()
    for name, other in (("ping", "pong"), ("pong", "ping")):
        seed = a_seed(DatasetKind.Derivative, a_dataset(name))
        story.put(a_chain(seed, a_transform(a_dataset(other))), name=name)

    found = targets(story.datasets, ("ping",), every=False, recursive=True)

    assert [target.name for target in found] == ["pong", "ping"]


def test_inputs_of_two_inputs_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="cities")
    for name, inputs in (("daily", ["cities"]), ("report", ["cities", "daily"])):
        seed = a_seed(DatasetKind.Derivative, a_dataset(name))
        story.put(a_chain(seed, a_transform(*map(a_dataset, inputs))), name=name)
    current, read = story.datasets.states.current, list[DatasetId]()

    def noted(dataset: DatasetId) -> ChainState | None:
        read.append(dataset)
        return current(dataset)

    monkeypatch.setattr(story.datasets.states, "current", noted)
    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["cities", "daily", "report"]
    assert read == [a_dataset("cities"), a_dataset("daily")]


def test_inputs_that_are_missing_or_have_no_head_do_not_hide_others() -> None:
    story = Story()
    story.catalog.add(CatalogEntry(alias="empty", dataset_id=a_dataset("empty")))
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="cities")
    story.put(a_derivative(*map(a_dataset, ("elsewhere", "empty", "cities"))), name="report")

    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["empty", "cities", "report"]


def test_a_folder_is_a_foreign_dataset_with_the_id_of_its_seed(
    datasets: NodeDatasets, tmp_path: Path
) -> None:
    chain, folder = a_chain(), tmp_path / "a copy"
    (folder / "blocks").mkdir(parents=True)
    url = folder.as_uri()
    assert url.endswith("/a%20copy")
    with pytest.raises(NotFound, match=f"a seed block in {folder}"):
        names(datasets, url)

    for block, raw in chain.store.items():
        (folder / "blocks" / str(block)).write_bytes(raw)
    (target,) = targets(datasets, (url,), every=False, recursive=True)

    assert (target.name, target.dataset, target.is_local) == (url, chain.state.dataset_id, False)
    assert target.reader.read_block(chain.state.head) == chain.store[chain.state.head]


def test_a_dataset_or_reference_that_does_not_exist_is_an_error(datasets: NodeDatasets) -> None:
    with pytest.raises(NotFound, match=r"dataset flihgts does not exist; did you mean flights\?"):
        names(datasets, "flihgts")
    with pytest.raises(NotFound, match="dataset trains"):
        names(datasets, "trains")
    with pytest.raises(NotFound, match="reference next of flights"):
        names(datasets, "flights@next")


@pytest.mark.parametrize("is_recursive", [False, True], ids=["alone", "with-inputs"])
def test_a_dataset_without_a_head_is_listed_since_that_is_a_finding(
    datasets: NodeDatasets, is_recursive: bool
) -> None:
    found = targets(datasets, ("flights",), every=False, recursive=is_recursive)
    assert [target.name for target in found] == ["flights"]
