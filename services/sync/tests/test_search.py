"""Datasets are found by words, locally and in repositories, whose index is cached."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from aiohttp import web
from odf_testing.builders import AChain, a_chain, a_dataset, a_seed
from odf_testing.clocks import ManualClock
from odf_testing.http import running
from odf_testing.node_datasets import hold, in_memory
from odf_testing.webserver import Page, PageServer, serving_pages

from odf_common.adapters.local.repositories import LocalRepositories, UnknownRepository
from odf_common.data.schema_evolution import schema_to_event
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import StorageUnavailable
from odf_common.identity.dataset_refs import Name
from odf_common.metadata.events import SetInfo
from odf_common.service.settings import Settings
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.list_routes import ListRoutes
from odf_sync.repositories import http_dataset
from odf_sync.repositories.folder_dataset import RemoteFolder
from odf_sync.search import crawl, own_datasets
from odf_sync.search import find_datasets as searching
from odf_sync.search.find_datasets import Query, Search, SearchedRepository, SearchHit
from odf_sync.search.index import Indexes
from odf_sync.search.own_datasets import OwnDatasets

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
def listing(datasets: NodeDatasets) -> Iterator[str]:
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
    return Search(own=own, settings=Settings(home=tmp_path / "here"), clock=ManualClock())


def known(here: Search, name: str, url: str) -> None:
    LocalRepositories(here.settings.home).add(Name(name), url)


def found(here: Search, text: str, **options: object) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.name, one.found_in) for one in results(here, text, **options)[0]]


def results(
    here: Search, text: str, **options: object
) -> tuple[tuple[SearchHit, ...], tuple[SearchedRepository, ...]]:
    return here.find(Query(text=text, **options))  # type: ignore[arg-type]


def test_names_keywords_columns_and_descriptions_are_searched_best_first(
    here: Search, tmp_path: Path
) -> None:
    there = node_of(airports=WEATHER, alice__cities=CITIES, readings=READINGS)
    with listing(there) as base:
        known(here, "shop", base)
        assert found(here, "WEATHER") == [
            ("local.weather", ("name", "keywords")),
            ("shop/airports", ("keywords",)),
            ("shop/alice/cities", ("description",)),
        ]
        assert found(here, "weather stations") == [("shop/alice/cities", ("description",))]
        assert found(here, "temperature") == [("shop/readings", ("columns",))]
        assert found(here, "hourly airports", repositories=("shop",)) == [
            ("shop/airports", ("name", "keywords", "description"))
        ]
        assert found(here, "nothing of that") == []
        (one,) = results(here, "readings")[0]
    assert one.dataset.id == str(READINGS.state.dataset_id)
    assert (one.dataset.kind, one.dataset.columns[-2:]) == ("root", ("station", "temperature"))


def test_an_index_is_used_while_it_is_fresh_or_the_repository_is_down(
    here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = cast("ManualClock", here.clock)
    monkeypatch.setattr(http_dataset, "READ_RETRY", False)
    there = node_of(airports=WEATHER)
    with listing(there) as base:
        known(here, "shop", base)
        assert len(found(here, "weather")) == 2
        hold(there, "cities", CITIES)
        clock.ms += searching.MAX_AGE_MS - 1
        assert len(found(here, "weather")) == 2, "the index is young"
        assert len(found(here, "weather", refresh=True)) == 3
        hold(there, "readings", READINGS)
        clock.ms += searching.MAX_AGE_MS
        assert len(found(here, "station")) == 2, "the index was old"
    clock.ms += searching.MAX_AGE_MS
    datasets, (searched,) = results(here, "station")
    assert len(datasets) == 2
    assert "Connection refused" in searched.problem
    assert searched.index.read_at_ms == clock.ms - searching.MAX_AGE_MS


def test_a_list_that_has_not_changed_is_not_sent_again(
    here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = node_of(airports=WEATHER)
    with listing(there) as base:
        known(here, "shop", base)
        before = found(here, "weather")
        monkeypatch.setattr(own_datasets, "PAGE_DATASETS", None)  # making a page would fail
        (_, (searched,)) = results(here, "weather", refresh=True)
        assert (found(here, "weather"), searched.problem) == (before, "")


def test_long_lists_come_in_pages(here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_datasets, "PAGE_DATASETS", 2)
    names = ["Ant", "bee", "Cow", "dog", "eel"]
    there = node_of(**{name: a_dataset_about(f"an animal: {name}") for name in names})
    with listing(there) as base:
        known(here, "zoo", base)
        assert [name for name, _ in found(here, "animal")] == [f"zoo/{name}" for name in names]


def test_folders_are_searched_and_only_new_blocks_are_read(
    here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared folder"
    write_folder(shared / "airports", WEATHER)
    write_folder(shared / "alice" / "cities", CITIES)
    (shared / "no name!").mkdir()
    (shared / "broken" / "refs").mkdir(parents=True)
    (shared / "broken" / "refs" / "head").write_text("damaged")
    known(here, "disk", shared.as_uri())
    assert found(here, "weather", repositories=("disk",)) == [
        ("disk/airports", ("keywords",)),
        ("disk/alice/cities", ("description",)),
    ]
    longer = a_chain(
        a_seed(dataset=a_dataset("Measured at airports")),
        SetInfo(description="Measured at airports", keywords=("weather", "hourly")),
        SCHEMA,
    )
    write_folder(shared / "airports", longer)
    read: list[str] = []
    block = RemoteFolder.block

    def noted(there: RemoteFolder, name: object) -> bytes:
        read.append(str(name))
        return block(there, name)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteFolder, "block", noted)
    assert found(here, "weather temperature", refresh=True) == [("disk/airports", ("keywords", "columns"))]
    assert set(read) <= {str(one.hash) for one in longer.blocks[-2:]}


def test_chains_are_read_up_to_a_limit(here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "BLOCKS_LIMIT", 1)
    write_folder(tmp_path / "shared" / "airports", WEATHER)
    known(here, "disk", (tmp_path / "shared").as_uri())
    (one,) = results(here, "hourly", repositories=("disk",))[0]
    assert (one.dataset.id, one.dataset.head) == ("", "")


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
    (one,) = results(here, "x", repositories=("odd",))[0]
    assert one.dataset.description.startswith("a [2Jb ccc")
    assert len(one.dataset.description) == 1000
    assert set(one.dataset.keywords) == {"k "}
    assert one.dataset.columns == ()


def test_a_server_without_a_list_is_reported(here: Search, server: PageServer) -> None:
    known(here, "static", server.url)
    (searched,) = results(here, "weather")[1]
    assert searched.problem == f"a list of datasets at {server.url}/datasets does not exist"
    with pytest.raises(UnknownRepository):
        results(here, "weather", repositories=("nowhere",))


@pytest.mark.parametrize("text", ["damaged", "[]", "{}", '{"url": "x"}', '{"url": 1, "datasets": 2}'])
def test_a_damaged_index_is_read_again(here: Search, tmp_path: Path, text: str) -> None:
    write_folder(tmp_path / "shared" / "airports", WEATHER)
    known(here, "disk", (tmp_path / "shared").as_uri())
    before = found(here, "weather")
    (here.settings.home / "search" / "disk.json").write_text(text)
    assert found(here, "weather") == before


def test_an_index_of_another_url_is_not_used(here: Search, tmp_path: Path) -> None:
    write_folder(tmp_path / "one" / "airports", WEATHER)
    write_folder(tmp_path / "two" / "cities", CITIES)
    known(here, "disk", (tmp_path / "one").as_uri())
    assert len(found(here, "airports", repositories=("disk",))) == 1
    LocalRepositories(here.settings.home).remove(Name("disk"))
    known(here, "disk", (tmp_path / "two").as_uri())
    assert found(here, "weather", repositories=("disk",)) == [("disk/cities", ("description",))]


def test_what_was_read_with_one_login_is_not_shown_with_another(here: Search) -> None:
    logins: dict[str, str] = {}

    async def listed(request: web.Request) -> web.Response:
        who = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return web.json_response({"datasets": [{"name": f"{who or 'public'}.flights"}]})

    app = web.Application()
    app.router.add_get("/datasets", listed)
    with running(app) as base:
        known(here, "shop", base)
        here = replace(here, token_for=lambda _: logins.get("token"))

        def names() -> list[str]:
            return [one.name for one in results(here, "flights", repositories=("shop",))[0]]

        assert names() == ["shop/public.flights"]
        for token in ("ann", "bob"):
            logins["token"] = token
            assert names() == [f"shop/{token}.flights"]
        kept = json.loads((here.settings.home / "search" / "shop.json").read_text())
        assert kept["login"] not in {"", "bob"}, "a hash of the token"
        logins.clear()
        assert names() == ["shop/public.flights"]
    logins["token"] = "ann"
    hits, (searched,) = results(here, "flights", repositories=("shop",))
    assert (hits, bool(searched.problem)) == ((), True), "not even if the repository does not answer"


def test_an_index_that_cannot_be_kept_does_not_prevent_the_search(
    here: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageUnavailable(file="search/disk.json", why="no space left", remedy="free some")

    write_folder(tmp_path / "shared" / "airports", WEATHER)
    known(here, "disk", (tmp_path / "shared").as_uri())
    monkeypatch.setattr(Indexes, "keep", full)
    datasets, (searched,) = results(here, "weather", repositories=("disk",))
    assert [one.name for one in datasets] == ["disk/airports"]
    assert "no space left" in searched.problem


def test_the_pages_of_a_list_have_a_limit_in_all(
    here: Search, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could send pages without end."""
    first = json.dumps({"datasets": [{"name": "a"}], "next": "a"}).encode()
    second = json.dumps({"datasets": [{"name": "b"}], "next": "b"}).encode()
    server.pages["/datasets"], server.pages["/datasets?after=a"] = Page(body=first), Page(body=second)
    server.pages["/datasets?after=b"] = Page(body=b'{"datasets": [{"name": "c"}]}')
    known(here, "long", server.url)
    monkeypatch.setattr(crawl, "LIST_LIMIT", len(first) + len(second))
    (searched,) = results(here, "a", repositories=("long",))[1]
    assert "bytes" in searched.problem
    monkeypatch.setattr(crawl, "LIST_LIMIT", len(first) + len(second) + 100)
    assert [one.name for one in results(here, "a", repositories=("long",), refresh=True)[0]] == ["long/a"]
    monkeypatch.setattr(crawl, "DATASETS_LIMIT", 2)
    assert [one.name for one in results(here, "c", repositories=("long",), refresh=True)[0]] == []
