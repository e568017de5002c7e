"""Datasets by the names of repositories, by id, and by their aliases."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_dataset, a_derivative, a_seed
from odf_testing.memory_store import hold, in_memory
from odf_testing.webserver import Page, PageServer, serving_pages

from odf_common.adapters.local.repositories import LocalRepositories, UnknownRepository
from odf_common.dataset.dataset_notes import RemoteAliases, change_aliases
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.identity.dataset_refs import Name
from odf_sync.repositories import http_dataset as http_repository
from odf_sync.repositories.locate import Location, locate
from odf_sync.repositories.smart_dataset import NotPushable, plain_url
from odf_sync.transfer.aliases import AliasChange, change, list_aliases

CITIES = a_chain(a_seed())
ID = CITIES.state.dataset_id
URL = "https://example.org/cities"


@pytest.fixture
def known(tmp_path: Path) -> LocalRepositories:
    found = LocalRepositories(tmp_path)
    found.add(Name("shop"), "https://data.example.org/odf")
    found.add(Name("disk"), "file:///srv/data")
    return found


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serving_pages() as pages:
        yield pages


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (URL, URL),
        ("odf+https://example.org/cities", "odf+https://example.org/cities"),
        ("shop/cities", "https://data.example.org/odf/cities"),
        ("SHOP/alice/cities", "https://data.example.org/odf/alice/cities"),
        ("disk/cities", "file:///srv/data/cities"),
    ],
)
def test_a_dataset_is_located_by_url_or_repository(known: LocalRepositories, text: str, url: str) -> None:
    assert locate(known, text) == Location(url=url)


def test_a_folder_has_its_datasets_under_their_ids_too(known: LocalRepositories) -> None:
    expected = Location(url=f"file:///srv/data/{ID.folder}", dataset=ID)
    assert locate(known, f"disk/{ID}") == expected


@pytest.mark.parametrize("text", ["cities", str(ID), "", "a/b/c/d", "shop/", "../cities"])
def test_other_names_are_refused(known: LocalRepositories, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a remote dataset|is not a reference"):
        locate(known, text)


def test_an_unknown_repository_is_named(known: LocalRepositories) -> None:
    for text in ("depot/cities", "depot/alice/cities", f"depot/{ID}"):
        with pytest.raises(UnknownRepository, match="repository depot"):
            locate(known, text)


@pytest.mark.parametrize("is_multi_tenant", [True, False])
def test_the_name_of_an_id_is_requested_from_the_node(
    known: LocalRepositories, server: PageServer, *, is_multi_tenant: bool
) -> None:
    known.add(Name("node"), server.url)
    found = {"id": str(ID), "owner": {"accountName": "alice", "accountId": "x"}, "datasetName": "cities"}
    server.pages[f"/datasets/{ID}"] = Page(body=json.dumps(found).encode())
    server.pages["/info"] = Page(body=json.dumps({"isMultiTenant": is_multi_tenant}).encode())
    path = "alice/cities" if is_multi_tenant else "cities"
    assert locate(known, f"node/{ID}") == Location(url=f"{server.url}/{path}", dataset=ID)


@pytest.mark.parametrize(
    ("token", "is_multi_tenant", "text", "path"),
    [
        ("t", True, "node/cities", "alice/cities"),
        ("t", True, "node/bob/cities", "bob/cities"),
        ("t", False, "node/cities", "cities"),
        (None, True, "node/cities", "cities"),
    ],
)
def test_a_name_without_an_account_is_that_of_ones_own_account_if_logged_in_at_a_node_with_accounts(  # noqa: PLR0917
    known: LocalRepositories,
    server: PageServer,
    token: str | None,
    is_multi_tenant: bool,
    text: str,
    path: str,
) -> None:
    known.add(Name("node"), f"odf+{server.url}")
    server.pages["/info"] = Page(body=json.dumps({"isMultiTenant": is_multi_tenant}).encode())
    server.pages["/accounts/me"] = Page(body=json.dumps({"accountName": "alice"}).encode())
    assert locate(known, text, lambda _: token) == Location(url=f"odf+{server.url}/{path}")
    if token is None:
        assert server.requests == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 410, 418, 451])
def test_a_server_that_refuses_to_report_accounts_has_names_without_them(
    known: LocalRepositories, server: PageServer, status: int
) -> None:
    known.add(Name("node"), server.url)
    found = {"id": str(ID), "owner": {"accountName": "alice", "accountId": "x"}, "datasetName": "cities"}
    server.pages[f"/datasets/{ID}"] = Page(body=json.dumps(found).encode())
    server.pages["/info"] = Page(status=status)
    assert locate(known, f"node/{ID}") == Location(url=f"{server.url}/cities", dataset=ID)


@pytest.mark.parametrize("status", [408, 429, 500, 501, 503])
def test_a_server_that_cannot_report_accounts_now_is_unavailable(
    known: LocalRepositories, server: PageServer, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names may have accounts: one without an account would name another dataset, or create it."""
    monkeypatch.setattr(http_repository, "READ_RETRY", 0)
    known.add(Name("node"), server.url)
    server.pages["/info"] = Page(status=status)
    with pytest.raises(Unavailable, match=f"status {status}"):
        locate(known, f"node/{ID}")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 60_000,
        b'{"datasetName": "cities"}',
        b'{"datasetName": "../x", "owner": {"accountName": "a"}}',
        b'{"datasetName": 1, "owner": []}',
        b" " * 70_000,
    ],
    ids=["empty", "list", "deep", "no owner", "odd name", "odd types", "long"],
)
def test_a_node_with_an_unexpected_response_is_refused(
    known: LocalRepositories, server: PageServer, body: bytes
) -> None:
    known.add(Name("node"), server.url)
    server.pages[f"/datasets/{ID}"] = Page(body=body)
    server.pages["/info"] = Page(body=b"{}")
    with pytest.raises(
        InvalidInput,
        match=r"not JSON|not an object|is not a name|not the name of a dataset|longer than 65536",
    ):
        locate(known, f"node/{ID}")


def test_an_id_that_a_node_does_not_have_is_not_found(known: LocalRepositories, server: PageServer) -> None:
    known.add(Name("node"), server.url)
    with pytest.raises(NotFound, match=str(ID)):
        locate(known, f"node/{ID}")


@pytest.fixture
def datasets() -> NodeDatasets:
    """Have `cities`, and `big.cities` derived from it."""
    made = in_memory()
    hold(made, "cities", CITIES)
    hold(made, "big.cities", a_derivative(ID))
    return made


def names(datasets: NodeDatasets, *refs: str, recursive: bool = False) -> list[str]:
    return [entry.alias for entry, _ in list_aliases(datasets, refs, recursive=recursive)]


def test_datasets_with_aliases_are_listed_by_name_id_and_pattern(
    datasets: NodeDatasets, known: LocalRepositories
) -> None:
    assert names(datasets) == []
    for ref in ("cities", "big.cities"):
        change(datasets, known, ref, AliasChange(add_pull=(URL,)))
    assert names(datasets) == ["big.cities", "cities"]
    assert names(datasets, "CITIES") == names(datasets, str(ID)) == ["cities"]
    assert names(datasets, "big.%", "towns", "cities@theirs", "%/") == ["big.cities"]


@pytest.mark.parametrize(
    ("ref", "error"), [("towns", NotFound), (str(a_dataset(1)), NotFound), ("a/b/c", InvalidInput)]
)
def test_the_aliases_of_no_dataset_are_not_found(
    datasets: NodeDatasets, ref: str, error: type[OdfError]
) -> None:
    for known in ("cities", str(ID), "nothing.%"):
        list_aliases(datasets, [known], recursive=False, is_strict=True)
    with pytest.raises(error):
        list_aliases(datasets, ["cities", ref], recursive=False, is_strict=True)


def test_inputs_are_listed_first_on_request(datasets: NodeDatasets, known: LocalRepositories) -> None:
    for ref in ("cities", "big.cities"):
        change(datasets, known, ref, AliasChange(add_pull=(URL,)))
    assert names(datasets, "big.cities") == ["big.cities"]
    assert names(datasets, "big.cities", recursive=True) == ["cities", "big.cities"]
    assert names(datasets, "big.cities", "cities", recursive=True) == ["cities", "big.cities"]


def test_aliases_are_added_and_deleted(datasets: NodeDatasets, known: LocalRepositories) -> None:
    _, found = change(
        datasets, known, "cities", AliasChange(add_pull=(URL, "shop/cities"), add_push=(f"odf+{URL}",))
    )
    assert found == RemoteAliases(pull=(URL, "shop/cities"), push=(f"odf+{URL}",))
    _, found = change(datasets, known, str(ID), AliasChange(delete_pull=(URL,), delete_push=(f"odf+{URL}",)))
    assert found == RemoteAliases(pull=("shop/cities",))


def test_an_invalid_alias_is_neither_added_nor_deleted(
    datasets: NodeDatasets, known: LocalRepositories
) -> None:
    with pytest.raises(NotFound, match="towns"):
        change(datasets, known, "towns", AliasChange(add_pull=(URL,)))
    with pytest.raises(NotFound, match=f"push alias {URL}"):
        change(datasets, known, "cities", AliasChange(delete_push=(URL,)))
    with pytest.raises(InvalidInput, match=r"expected repository/my\.dataset"):
        AliasChange(add_pull=("cities",))
    assert names(datasets) == []


@pytest.mark.parametrize("place", ["odf+http://h/x", "file:///srv/x", "s3://bucket/x", "shop/cities"])
def test_a_location_that_accepts_pushes_becomes_a_push_alias(
    datasets: NodeDatasets, known: LocalRepositories, place: str
) -> None:
    assert change(datasets, known, "cities", AliasChange(add_push=(place,)))[1].push == (place,)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        (URL, f"for a node, use the same address as odf+{URL}, with `odf repo add` too"),
        ("http://h:1/x", "for a node, use the same address as odf+http://h:1/x, with `odf repo add` too"),
        ("ftp://h/x", ""),
    ],
)
def test_a_url_that_cannot_be_pushed_to_names_the_one_that_can(
    known: LocalRepositories, url: str, advice: str
) -> None:
    for refused in (lambda: plain_url(url), lambda: AliasChange(add_push=(url,))):
        with pytest.raises(NotPushable, match="cannot be pushed to: expected odf") as caught:
            refused()
        assert caught.value.advice() == advice
    for better in re.findall(r"odf\+\w+://[^,]+", advice):
        AliasChange(add_push=(better,))
        known.add(Name("repo"), better)
        assert plain_url(locate(known, "repo/cities").url) == f"{url}/cities/"


@pytest.mark.parametrize(
    "url", ["http://joe:secret@h/x", "odf+http://joe:secret@h/x", "s3://key:secret@bucket/x"]
)
def test_a_url_with_a_password_is_neither_read_nor_kept(known: LocalRepositories, url: str) -> None:
    for refused in (
        lambda: locate(known, url),
        lambda: AliasChange(add_pull=(url,)),
        lambda: AliasChange(add_push=(url,)),
    ):
        with pytest.raises(InvalidInput, match="credentials do not belong in a URL") as caught:
            refused()
        assert "secret" not in str(caught.value)
    assert AliasChange(delete_pull=(url,)).delete_pull == (url,)


@pytest.mark.parametrize("deleted", ["http://joe:secret@h/x?y=1@2", "http://***@h/x?y=1@2"])
def test_a_password_in_an_alias_that_was_stored_earlier_is_not_listed(
    datasets: NodeDatasets, known: LocalRepositories, deleted: str
) -> None:
    earlier = RemoteAliases(pull=("http://joe:secret@h/x?y=1@2", URL), push=("s3://key:secret@bucket/x",))
    change_aliases(datasets.blobs, ID, lambda _: earlier)
    ((_, found),) = list_aliases(datasets, ["cities"], recursive=False)
    assert found == RemoteAliases(pull=("http://***@h/x?y=1@2", URL), push=("s3://***@bucket/x",))
    _, found = change(datasets, known, "cities", AliasChange(delete_pull=(deleted,)))
    assert found == RemoteAliases(pull=(URL,), push=("s3://***@bucket/x",))
    with pytest.raises(NotFound) as caught:
        change(datasets, known, "cities", AliasChange(delete_pull=(deleted,)))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("location", ["shpo/cities", f"shpo/{ID}"])
def test_an_alias_in_a_repository_that_is_not_known_is_refused(
    datasets: NodeDatasets, known: LocalRepositories, location: str
) -> None:
    for wanted in (AliasChange(add_pull=(location,)), AliasChange(add_push=(location,))):
        with pytest.raises(UnknownRepository, match="repository shpo"):
            change(datasets, known, "cities", wanted)
    assert names(datasets) == []


def test_a_missing_input_is_left_out(datasets: NodeDatasets, known: LocalRepositories) -> None:
    change(datasets, known, "big.cities", AliasChange(add_push=(f"odf+{URL}",)))
    change_aliases(datasets.blobs, ID, lambda aliases: aliases.with_pull(URL))
    datasets.catalog.remove("cities")
    assert names(datasets, "big.cities", recursive=True) == ["big.cities"]
