"""Ranking, limits of summaries, and searches with an odd repository or clock."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from odf_testing.builders import AChain, a_chain, a_dataset, a_derivative, a_seed
from odf_testing.clocks import ManualClock
from odf_testing.guarded import GuardedDict
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog
from odf_testing.node_datasets import in_memory

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.chain.state import ChainState
from odf_common.data.schema_evolution import schema_to_event
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import Damaged, NotFound, OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import Name
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry
from odf_common.service.settings import Settings
from odf_sync.repositories.folder_dataset import RemoteFolder
from odf_sync.search import crawl
from odf_sync.search import find_datasets as searching
from odf_sync.search.crawl import Listing, summary_of_chain
from odf_sync.search.find_datasets import MAX_AGE_MS, Query, Search, SearchedRepository, matching
from odf_sync.search.index import NOTHING, Index, Indexes, Read
from odf_sync.search.own_datasets import OwnDatasets
from odf_sync.search.summary import DatasetSummary, summary_of


def described(name: str, *, title: str = "", keywords: tuple[str, ...] = ()) -> AChain:
    return a_chain(a_seed(dataset=a_dataset(name)), SetInfo(description=title, keywords=keywords))


def write(folder: Path, chain: AChain) -> None:
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "blocks").mkdir(exist_ok=True)
    for block in chain.blocks:
        (folder / "blocks" / str(block.hash)).write_bytes(block.raw)
    (folder / "refs" / "head").write_text(str(chain.state.head))


@pytest.fixture
def here(tmp_path: Path) -> Search:
    """Searches of a node without datasets that knows a folder."""
    home = tmp_path / "home"
    LocalRepositories(home).add(Name("disk"), (tmp_path / "disk").as_uri())
    (tmp_path / "disk").mkdir()
    own = OwnDatasets(datasets=in_memory(), in_bucket=False)
    return Search(own=own, settings=Settings(home=home), clock=ManualClock())


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


def found(here: Search, text: str, **options: Any) -> list[str]:
    return [one.name for one in here.find(Query(text=text, **options))[0]]


def test_the_best_match_of_any_word_decides_and_names_break_ties(here: Search, disk: Path) -> None:
    write(disk / "b", described("b", title="late rain", keywords=("rain",)))
    write(disk / "a", described("a", title="rain"))
    write(disk / "rain", described("rain"))
    write(disk / "C", described("C", title="late", keywords=("rain",)))
    assert found(here, "rain") == ["disk/rain", "disk/b", "disk/C", "disk/a"]
    assert found(here, "") == ["disk/a", "disk/b", "disk/C", "disk/rain"]


def test_every_word_is_needed_in_some_field_in_any_case() -> None:
    one = DatasetSummary(name="Rain", keywords=("Hourly",), columns=("Depth",), description="Of Kyiv")
    for text, fields in {
        "RAIN": ("name",),
        "kyiv hourly": ("keywords", "description"),
        "depth": ("columns",),
        "rain dry": None,
        "hourlydepth": None,
    }.items():
        results = [result.found_in for result in matching("", [one], text.lower().split())]
        assert results == ([] if fields is None else [fields]), text


def test_after_a_clock_was_set_back_an_index_is_not_used(here: Search, disk: Path) -> None:
    clock = cast("ManualClock", here.clock)
    write(disk / "a", described("a", title="rain"))
    assert found(here, "rain") == ["disk/a"]
    write(disk / "b", described("b", title="rain"))
    assert found(here, "rain") == ["disk/a"], "read at this time"
    clock.ms -= 1
    assert found(here, "rain") == ["disk/a", "disk/b"]
    write(disk / "c", described("c", title="rain"))
    clock.ms += MAX_AGE_MS
    assert found(here, "rain") == ["disk/a", "disk/b", "disk/c"]


def test_the_owners_last_definition_is_used(disk: Path) -> None:
    schemas = [schema_to_event(pa.schema([(name, pa.string())])) for name in ("old", "new")]
    infos = [SetInfo(description=text, keywords=(text,)) for text in ("old", "new")]
    chain = a_chain(a_seed(), schemas[0], infos[0], infos[1])
    write(disk / "a", chain)
    summary = summary_of_chain(RemoteFolder((disk / "a").as_uri()), "a", chain.state.head, None)
    assert (summary.description, summary.keywords, summary.columns[-1]) == ("new", ("new",), "old")
    assert replace(summary, name="x") == summary_of("x", chain.state)


def test_a_chain_is_read_back_to_the_known_block_and_earlier_definitions_are_kept(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = described("a", title="rain", keywords=("wet",))
    after = a_chain(
        a_seed(dataset=a_dataset("a")),
        SetInfo(description="rain", keywords=("wet",)),
        schema_to_event(pa.schema([("depth", pa.float64())])),
    )
    write(disk / "a", after)
    known = summary_of("a", before.state)
    monkeypatch.setattr(crawl, "BLOCKS_LIMIT", 2)
    there = RemoteFolder((disk / "a").as_uri())
    assert summary_of_chain(there, "a", after.state.head, known) == summary_of("a", after.state)
    unfinished = summary_of_chain(there, "a", after.state.head, None)
    assert (unfinished.head, unfinished.description) == ("", "rain"), "its Seed was not reached"


def test_a_derivative_is_shown_as_one(disk: Path) -> None:
    chain = a_derivative(a_dataset("input"))
    write(disk / "a", chain)
    there = RemoteFolder((disk / "a").as_uri())
    assert summary_of_chain(there, "a", chain.state.head, None).kind == "derivative"


def test_an_unreadable_dataset_hides_its_folder_and_nothing_else(here: Search, disk: Path) -> None:
    write(disk / "broken" / "inner", described("inner", title="rain"))
    (disk / "broken" / "refs").mkdir()
    (disk / "broken" / "refs" / "head").write_text("damaged")
    write(disk / "account" / "inner", described("other", title="rain"))
    (disk / "a file").write_text("no folder")
    assert found(here, "rain") == ["disk/account/inner"]


def test_the_number_of_datasets_read_from_a_folder_is_limited(
    here: Search, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        write(disk / name, described(name, title="rain"))
    monkeypatch.setattr(crawl, "DATASETS_LIMIT", 2)
    assert found(here, "rain") == ["disk/a", "disk/b"]


def test_a_missing_folder_is_a_problem_and_its_index_is_searched(here: Search, disk: Path) -> None:
    write(disk / "a", described("a", title="rain"))
    assert found(here, "rain") == ["disk/a"]
    disk.rename(disk.with_name("moved"))
    datasets, (searched,) = here.find(Query(text="rain", refresh=True))
    assert [one.name for one in datasets] == ["disk/a"]
    assert searched.problem == f"folder {disk} does not exist"


def listed(**fields: object) -> DatasetSummary:
    return DatasetSummary.of_json({"name": "a", **fields})


def test_the_summary_of_a_listed_dataset_is_limited() -> None:
    """Each limit separately."""
    assert len(listed(description="x" * 1001).description) == 1000
    assert listed(keywords=["k" * 101]).keywords == ("k" * 100,)
    assert len(listed(keywords=["k"] * 51).keywords) == 50
    assert listed(columns=["c" * 101]).columns == ("c" * 100,)
    assert len(listed(columns=["c"] * 501).columns) == 500
    for field in ("id", "kind", "head"):
        assert getattr(listed(**{field: "x" * 101}), field) == "x" * 100
        assert getattr(listed(**{field: 7}), field) == ""
    assert listed(keywords="word").keywords == ()
    full = listed(
        id="i", kind="root", head="h", description="a\tb", keywords=["k", 1, "l"], columns=["c", None]
    )
    assert full == DatasetSummary(
        name="a",
        id="i",
        kind="root",
        head="h",
        description="a b",
        keywords=("k", "l"),
        columns=("c",),
    )
    assert DatasetSummary.of_json(json.loads(json.dumps(full.json()))) == full


class Failing:
    """Chain states and heads that cannot be read for one dataset."""

    def __init__(self, states: Mapping[DatasetId, ChainState], failing: DatasetId, error: OdfError) -> None:
        self._states, self._failing, self._error = states, failing, error

    def current(self, dataset: DatasetId) -> ChainState | None:
        if dataset == self._failing:
            raise self._error
        return self._states.get(dataset)

    def head(self, dataset: DatasetId) -> object:
        state = self.current(dataset)
        return None if state is None else state.head


GONE, HERE, EMPTY = (CatalogEntry(alias=name, dataset_id=a_dataset(name)) for name in ("a", "b", "c"))


def failing(error: OdfError, *, in_bucket: bool) -> OwnDatasets:
    states: Any = Failing({HERE.dataset_id: described("b").state}, GONE.dataset_id, error)
    datasets = NodeDatasets(catalog=MemoryCatalog(), blobs=MemoryBlobStore(), refs=states, states=states)
    return OwnDatasets(datasets=datasets, in_bucket=in_bucket)


def tried() -> Iterator[tuple[OdfError, bool, bool]]:
    """Yield errors, whether the node has a bucket, and whether the list is refused."""
    for has_bucket in (False, True):
        yield Unavailable(what="the bucket", why="no answer"), has_bucket, has_bucket
        yield Damaged(file="blocks/x", why="cut off"), has_bucket, False


@pytest.mark.parametrize(("error", "has_bucket", "is_refused"), tuple(tried()))
def test_an_unreachable_bucket_does_not_result_in_an_empty_list(
    error: OdfError, has_bucket: bool, is_refused: bool
) -> None:
    own, entries = failing(error, in_bucket=has_bucket), (GONE, HERE, EMPTY)
    if is_refused:
        for read in (lambda: list(own.summaries(entries)), lambda: own.fingerprint(entries)):
            with pytest.raises(type(error)):
                read()
        return
    assert [one.name for one in own.summaries(entries)] == ["b"]
    assert [one.name for one in own.page(entries, "").datasets] == ["b"]
    assert own.page(entries, "B").datasets == ()
    tags = {own.fingerprint(some) for some in (entries, entries[1:], entries[:2], (GONE, EMPTY))}
    assert len(tags) == 4


@contextmanager
def silent() -> Iterator[str]:
    """Yield the URL of a server that accepts connections, and never answers; they are closed afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_a_silent_repository_delays_a_search_only_for_a_while(
    here: Search, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SEARCH_SECONDS", 0.5)
    write(disk / "a", described("a", title="rain"))
    known, earlier = LocalRepositories(here.settings.home), DatasetSummary(name="b", description="rain")
    with silent() as first, silent() as second:
        known.add(Name("mute"), first)
        known.add(Name("new"), second)
        index = Index(listing=Listing(datasets=(earlier,)), read_at_ms=1)
        Indexes(here.settings.home).keep(Read(name=Name("mute"), url=first), index)
        began = time.monotonic()
        here.find(Query(text="rain"))
        datasets, searched = here.find(Query(text="rain"))
        assert time.monotonic() - began < 5, "not one after the other"
        threads = [one for one in threading.enumerate() if one.name.startswith("search ")]
        assert len(threads) == 2, "the second search waits for the reads of the first"
    problem = "no answer in 0.5 s; reading it continues in the background"
    assert [one.name for one in datasets] == ["disk/a", "mute/b"]
    assert [(one.name, one.problem) for one in searched] == [
        ("disk", ""),
        ("mute", problem),
        ("new", problem),
    ]
    for one in threads:
        one.join(10)


def test_an_index_read_after_a_search_is_used_by_the_next(
    here: Search, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SEARCH_SECONDS", 0.1)
    write(disk / "a", described("a", title="rain"))
    goes_on, head = threading.Event(), RemoteFolder.head

    def slow_head(self: RemoteFolder) -> Multihash:
        assert goes_on.wait(10)
        return head(self)

    monkeypatch.setattr(RemoteFolder, "head", slow_head)
    assert here.find(Query(text="rain"))[0] == ()
    goes_on.set()
    monkeypatch.setattr(searching, "SEARCH_SECONDS", 10.0)
    assert [one.name for one in here.find(Query(text="rain"))[0]] == ["disk/a"]


def test_a_search_waits_for_no_read_of_another_url_and_for_none_if_the_index_is_fresh(
    here: Search, disk: Path
) -> None:
    write(disk / "a", described("a", title="rain"))
    ends, reads = threading.Event(), here.reads

    def blocked() -> SearchedRepository:
        assert ends.wait(60)
        return SearchedRepository(name="disk", index=NOTHING)

    try:
        for url in (
            "http://127.0.0.1:1/",
            disk.as_uri(),
        ):  # the former one of this name; then the current one
            reads.begin(Read(name=Name("disk"), url=url), blocked)
            found, (searched,) = here.find(Query(text="rain"))
            assert ([one.name for one in found], searched.problem) == (["disk/a"], "")
    finally:
        ends.set()


def test_a_read_is_started_and_ended_by_one_thread_at_a_time() -> None:
    reads, found = searching.Reads(), SearchedRepository(name="disk", index=NOTHING)
    running: GuardedDict[Read, Future[SearchedRepository]] = GuardedDict(reads._guard)
    reads._running = running
    assert reads.begin(Read(name=Name("disk"), url="file:///disk"), lambda: found).result(10) == found
    for thread in threading.enumerate():
        if thread.name == "search disk":
            thread.join(10)
    assert len(running) == 0


def test_a_read_that_fails_fails_for_all_who_wait_for_it() -> None:
    def fail() -> SearchedRepository:
        raise Damaged(file="index", why="it is damaged")

    begun = searching.Reads().begin(Read(name=Name("disk"), url="file:///disk"), fail)
    assert isinstance(begun.exception(10), Damaged)


def test_a_repository_whose_token_cannot_be_read_has_no_datasets(here: Search, disk: Path) -> None:
    write(disk / "a", described("a", title="rain"))

    def no_token(_: str) -> str | None:
        raise Damaged(file="access.db", why="it is damaged")

    found, (searched,) = replace(here, token_for=no_token).find(Query(text="rain"))
    assert (found, searched.index) == ((), NOTHING)
    assert "it is damaged" in searched.problem


def test_a_repository_that_is_removed_while_it_is_read_has_no_datasets(
    here: Search, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(disk / "a", described("a", title="rain"))
    monkeypatch.setattr(searching, "SEARCH_SECONDS", 0.01)
    goes_on, head = threading.Event(), RemoteFolder.head

    def removed(self: RemoteFolder) -> Multihash:
        assert goes_on.wait(10)
        return head(self)

    def find(self: Indexes, read: Read) -> Index:
        finds.append(read.name)
        if len(finds) > 1:
            raise NotFound(what=f"repository {read.name}")
        return NOTHING

    finds: list[Name] = []
    monkeypatch.setattr(RemoteFolder, "head", removed)
    monkeypatch.setattr(Indexes, "find", find)
    found, (searched,) = here.find(Query(text="rain"))
    goes_on.set()
    assert (found, searched.index) == ((), NOTHING)
    assert "repository disk" in searched.problem


def test_a_folder_with_an_invalid_name_of_a_dataset_hides_no_other() -> None:
    assert list(crawl._valid(["-", "cities", "a b", "ann/towns"])) == ["cities", "ann/towns"]


def test_a_long_chain_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "BLOCKS_LIMIT", 2)
    chain, read = a_chain(a_seed(), *(SetInfo(description=text) for text in "abcde")), list[Multihash]()

    def block(name: Multihash) -> bytes:
        read.append(name)
        return chain.read(name)

    there = cast("Any", SimpleNamespace(block=block))
    found = summary_of_chain(there, "cities", chain.state.head, None)
    assert (found.description, len(read)) == ("e", 3)
