"""Datasets are found by words, on this node and in repositories, which are not trusted."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from odf_testing.builders import AChain, a_chain, a_dataset, a_seed
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, hold, in_memory
from odf_testing.webserver import Page, PageServer, serving_pages

from odf_common.adapters.local.repositories import LocalRepositories, UnknownRepository
from odf_common.chain.state import ChainState
from odf_common.data.schema_evolution import schema_to_event
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import Damaged, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry
from odf_common.service.settings import Settings
from odf_sync import search
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.read_routes import ListRoutes
from odf_sync.search import (
    DatasetSummary,
    OwnDatasets,
    Search,
    SearchedRepository,
    SearchHit,
    matching,
)

SCHEMA = schema_to_event(pa.schema([("station", pa.string()), ("temperature", pa.float64())]))


def a_dataset_about(description: str, *keywords: str) -> AChain:
    return a_chain(
        a_seed(dataset=a_dataset(description)), SetInfo(description=description, keywords=keywords)
    )


def node_of(**chains: AChain) -> NodeDatasets:
    """Return the datasets of a node; a double underscore is the slash of an account."""
    made = in_memory()
    for name, chain in chains.items():
        hold(made, name.replace("__", "/"), chain)
    return made


@contextmanager
def serving(datasets: NodeDatasets) -> Iterator[str]:
    authorizer = Authorizer(catalog=datasets.catalog, local_writers="loopback")
    routes = ListRoutes(OwnDatasets(datasets=datasets, in_bucket=False), authorizer)
    with running(application(authorizer, tuple(routes.endpoints()))) as base:
        yield base


def write_folder(folder: Path, chain: AChain) -> None:
    for block in chain.blocks:
        file = folder / "blocks" / str(block.hash)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(block.raw)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "head").write_text(str(chain.state.head))


WEATHER = a_dataset_about("Measured at airports", "weather", "hourly")
CITIES = a_dataset_about("Cities and their weather stations")
READINGS = a_chain(a_seed(dataset=a_dataset("readings")), SCHEMA)


@pytest.fixture
def here(tmp_path: Path) -> Search:
    own = OwnDatasets(datasets=node_of(**{"local.weather": WEATHER}), in_bucket=False)
    return Search(own=own, settings=Settings(home=tmp_path / "here"))


def known(here: Search, name: str, url: str) -> None:
    LocalRepositories(here.settings.home).add(Name(name), url)


def found(here: Search, text: str, **options: object) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.name, one.found_in) for one in results(here, text, **options)[0]]


def results(
    here: Search, text: str, **options: object
) -> tuple[tuple[SearchHit, ...], tuple[SearchedRepository, ...]]:
    return here.find(text, **options)  # type: ignore[arg-type]


def test_names_keywords_columns_and_descriptions_are_searched_best_first(
    here: Search, tmp_path: Path
) -> None:
    there = node_of(airports=WEATHER, alice__cities=CITIES, readings=READINGS)
    with serving(there) as base:
        known(here, "shop", base)
        assert found(here, "WEATHER") == [
            ("local.weather", ("name", "keywords")),
            ("shop/airports", ("keywords",)),
            ("shop/alice/cities", ("description",)),
        ]
        assert found(here, "weather stations") == [("shop/alice/cities", ("description",))]
        assert found(here, "temperature") == [("shop/readings", ("columns",))]
        assert found(here, "hourly airports", searched=("shop",)) == [
            ("shop/airports", ("name", "keywords", "description"))
        ]
        assert found(here, "nothing of that") == []
        (one,) = results(here, "readings")[0]
    assert one.dataset.id == str(READINGS.state.dataset_id)
    assert (one.dataset.kind, one.dataset.columns[-2:]) == ("root", ("station", "temperature"))


def test_long_lists_come_in_pages(here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PAGE_DATASETS", 2)
    names = ["Ant", "bee", "Cow", "dog", "eel"]
    there = node_of(**{name: a_dataset_about(f"an animal: {name}") for name in names})
    with serving(there) as base:
        known(here, "zoo", base)
        assert [name for name, _ in found(here, "animal")] == [f"zoo/{name}" for name in names]


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serving_pages() as pages:
        yield pages


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a list of datasets"),
        (b'{"datasets": [1]}', "not a listed dataset"),
        (b'{"datasets": [{"name": "../x"}]}', "../x"),
        (b'{"datasets": [], "next": "b"}', "do not continue"),
        (b'{"datasets": [{"name": "b"}], "next": "b"}', "do not continue"),
    ],
)
def test_lists_are_not_trusted(here: Search, server: PageServer, body: bytes, problem: str) -> None:
    server.pages["/datasets"] = server.pages["/datasets?after=b"] = Page(body=body)
    known(here, "odd", server.url)
    datasets, (searched,) = results(here, "weather")
    assert [one.name for one in datasets] == ["local.weather"]
    assert problem in searched.problem


def test_foreign_strings_cannot_control_a_terminal(here: Search, server: PageServer) -> None:
    listed = {
        "name": "x",
        "description": "a\x1b[2Jb\ud800" + "c" * 5000,
        "keywords": ["k\n", 3] * 100,
        "columns": 7,
    }
    server.pages["/datasets"] = Page(body=json.dumps({"datasets": [listed]}).encode())
    known(here, "odd", server.url)
    (one,) = results(here, "x", searched=("odd",))[0]
    assert one.dataset.description.startswith("a [2Jb ccc")
    assert len(one.dataset.description) == 1000
    assert set(one.dataset.keywords) == {"k "}
    assert one.dataset.columns == ()


def test_a_server_without_a_list_is_reported(here: Search, server: PageServer) -> None:
    known(here, "static", server.url)
    (searched,) = results(here, "weather")[1]
    assert searched.problem == f"a list of datasets at {server.url}/datasets does not exist"
    with pytest.raises(UnknownRepository):
        results(here, "weather", searched=("nowhere",))


def test_the_pages_of_a_list_have_a_limit_in_all(
    here: Search, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could send pages without end."""
    first = json.dumps({"datasets": [{"name": "a"}], "next": "a"}).encode()
    second = json.dumps({"datasets": [{"name": "b"}], "next": "b"}).encode()
    server.pages["/datasets"], server.pages["/datasets?after=a"] = Page(body=first), Page(body=second)
    server.pages["/datasets?after=b"] = Page(body=b'{"datasets": [{"name": "c"}]}')
    known(here, "long", server.url)
    monkeypatch.setattr(search, "LIST_LIMIT", len(first) + len(second))
    (searched,) = results(here, "a", searched=("long",))[1]
    assert "bytes" in searched.problem
    monkeypatch.setattr(search, "LIST_LIMIT", len(first) + len(second) + 100)
    assert [one.name for one in results(here, "a", searched=("long",))[0]] == ["long/a"]
    monkeypatch.setattr(search, "DATASETS_LIMIT", 2)
    assert [one.name for one in results(here, "c", searched=("long",))[0]] == []


def test_names_in_folders_are_searched(here: Search, tmp_path: Path) -> None:
    shared = tmp_path / "shared folder"
    write_folder(shared / "airports", WEATHER)
    write_folder(shared / "alice" / "cities", CITIES)
    (shared / "no name!").mkdir()
    (shared / "a file").write_text("no folder")
    write_folder(shared / "broken" / "airports", WEATHER)
    (shared / "broken" / "refs").mkdir()
    (shared / "broken" / "refs" / "head").write_text("damaged")
    known(here, "disk", shared.as_uri())
    assert found(here, "i", searched=("disk",)) == [
        ("disk/airports", ("name",)),
        ("disk/alice/cities", ("name",)),
    ]
    assert [name for name, _ in found(here, "broken")] == ["disk/broken"], (
        "its damage is for a pull to report"
    )


def test_the_number_of_datasets_of_a_folder_is_limited(
    here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        write_folder(tmp_path / "shared" / name, WEATHER)
    known(here, "disk", (tmp_path / "shared").as_uri())
    monkeypatch.setattr(search, "DATASETS_LIMIT", 2)
    assert [name for name, _ in found(here, "", searched=("disk",))] == ["disk/a", "disk/b"]


def test_a_repository_that_cannot_be_read_is_named_and_the_others_are_searched(
    here: Search, tmp_path: Path
) -> None:
    known(here, "disk", (tmp_path / "missing").as_uri())
    known(here, "away", "http://127.0.0.1:1/")
    datasets, searched = results(here, "weather")
    assert [one.name for one in datasets] == ["local.weather"]
    problems = {one.name: one.problem for one in searched}
    assert problems["disk"] == f"folder {tmp_path / 'missing'} does not exist"
    assert "Connection refused" in problems["away"]


def test_a_repository_whose_token_cannot_be_read_is_named(here: Search, server: PageServer) -> None:
    def damaged(_: str) -> str | None:
        raise Damaged(file="access.db", why="it is damaged")

    known(here, "shop", server.url)
    (searched,) = results(replace(here, token_for=damaged), "weather")[1]
    assert "it is damaged" in searched.problem


def test_the_token_of_the_login_is_sent(here: Search) -> None:
    async def list_datasets(request: web.Request) -> web.Response:
        return web.json_response({"datasets": [{"name": request.headers["Authorization"].split()[-1]}]})

    app = web.Application()
    app.router.add_get("/datasets", list_datasets)
    with running(app) as base:
        known(here, "shop", base)
        assert found(replace(here, token_for=lambda _: "ann"), "ann") == [("shop/ann", ("name",))]


def test_silent_repositories_delay_a_search_together_and_only_for_a_while(
    here: Search, tmp_path: Path
) -> None:
    write_folder(tmp_path / "shared" / "weather", WEATHER)
    known(here, "disk", (tmp_path / "shared").as_uri())
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        for name, silent in (("mute", first), ("new", second)):
            known(here, name, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        began = time.monotonic()
        datasets, searched = results(replace(here, seconds=0.5), "weather")
        assert time.monotonic() - began < 5
        assert [one.name for one in datasets] == ["local.weather", "disk/weather"]
        assert [(one.name, one.problem) for one in searched] == [
            ("disk", ""),
            ("mute", "no answer in 0.5 s"),
            ("new", "no answer in 0.5 s"),
        ]
    for thread in threading.enumerate():
        if thread.name.startswith("search "):
            thread.join(20)


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


GONE, HERE, EMPTY = (CatalogEntry(alias=name, dataset_id=a_dataset(name)) for name in ("a", "b", "c"))


def failing(error: OdfError, *, in_bucket: bool) -> OwnDatasets:
    states: Any = Failing({HERE.dataset_id: WEATHER.state}, GONE.dataset_id, error)
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
        with pytest.raises(type(error)):
            list(own.summaries(entries))
        return
    assert [one.name for one in own.summaries(entries)] == ["b"]
    assert [one.name for one in own.page(entries, "").datasets] == ["b"]
    assert own.page(entries, "B").datasets == ()
