"""A private dataset stays private when it is pulled or pushed, also on a node whose datasets are public by default."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from odf_testing.builders import a_hash
from odf_testing.http import running
from odf_testing.sync_node import SyncNode, open_exchanges

from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import InvalidInput
from odf_common.ports.store import PRIVATE_MARK, require_entry
from odf_common.service.node_home import require_tenancy
from odf_common.service.settings import MULTI_TENANT, Settings
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility as Rule
from odf_sync.http import authorization, serve_pull, serve_push, simple_protocol, smart_routes
from odf_sync.http.authorization import Authorizer
from odf_sync.repositories.http_dataset import HttpDataset
from odf_sync.repositories.s3 import S3Dataset
from odf_sync.smart import messages as msg
from odf_sync.smart.messages import DatasetVisibility, TransferUrl
from odf_sync.transfer.push_source import AnotherVisibility

from .node_with_account import Node

LOOPBACK = ("127.0.0.0/8", "::1/128")


def without_choices() -> SimpleNamespace:
    """Return the messages of a server that does not know of choices of visibility."""
    return SimpleNamespace(**(vars(msg) | {"CHOSEN_HEADER": "unknown-header"}))


@pytest.fixture
def here(tmp_path: Path) -> Node:
    node = Node(tmp_path / "here", is_multi_tenant=False)
    node.add_cities(["Kyiv"])
    return node


@pytest.fixture
def there(tmp_path: Path) -> Node:
    return Node(tmp_path / "there", is_multi_tenant=False)


@pytest.mark.parametrize("scheme", ["", "odf+"], ids=["simple", "smart"])
@pytest.mark.parametrize("source", Rule)
def test_a_copy_is_private_if_its_source_needs_the_token(
    here: Node, there: Node, scheme: str, source: Rule
) -> None:
    here.set_visibility("cities", source)
    with here.served(here.authorizer) as base:
        *_, last = there.pull(f"{scheme}{base}/cities", "copy", token=here.token, privacy=there.privacy)
        assert there.visibility("copy") is source
        assert last.is_private == (source is Rule.PRIVATE)
        here.coordinator.push("cities", "Oslo", minute=9)
        there.set_visibility("copy", Rule.PUBLIC)
        *_, again = there.pull(f"{scheme}{base}/cities", "copy", token=here.token, privacy=there.privacy)
    assert (again.state, again.is_private) == ("updated", False)
    assert there.visibility("copy") is Rule.PUBLIC, "only a new copy is made private"


def test_a_private_dataset_is_copied_from_and_to_a_node_that_gives_urls_under_another_name(
    there: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_exchanges(monkeypatch)
    url_of = serve_pull.url_of

    def renamed(*arguments: Any) -> TransferUrl:
        given = url_of(*arguments)
        return replace(given, url=given.url.replace("127.0.0.1", "localhost"))

    for module in (serve_pull, serve_push):
        monkeypatch.setattr(module, "url_of", renamed)
    sender, again = (
        SyncNode(home, Settings(home=home, fetch_networks=LOOPBACK))
        for home in (tmp_path / "sender", tmp_path / "again")
    )
    sender.add_cities(["Kyiv"])
    with there.served(there.authorizer) as base:
        url = f"odf+{base}/cities"
        sender.push("cities", url, token=there.token)
        again.pull(url, "copy", token=there.token)
    assert again.content("copy") == there.content("cities") == sender.content("cities")


def test_a_copy_that_needed_a_token_is_private_unless_the_other_node_says_that_everyone_may_read_it(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_protocol, "EVERYONE_HEADER", "unknown-header")  # another implementation
    with here.served(here.authorizer) as base:
        *_, last = there.pull(f"{base}/cities", "copy", token=here.token, privacy=there.privacy)
    assert last.is_private
    assert there.visibility("copy") is Rule.PRIVATE


@pytest.mark.parametrize("scheme", ["", "odf+"], ids=["simple", "smart"])
def test_a_dataset_that_has_lost_its_name_is_private_when_it_is_pulled_again(
    here: Node, there: Node, scheme: str
) -> None:
    with here.served(here.authorizer) as base:
        there.pull(f"{scheme}{base}/cities", "copy", privacy=there.privacy)
        there.set_visibility("copy", Rule.PRIVATE)
        there.catalog.remove("copy")
        assert there.pull(f"{scheme}{base}/cities", "copy", privacy=there.privacy)[-1].is_private
    assert there.visibility("copy") is Rule.PRIVATE


@pytest.mark.parametrize("is_chosen", [False, True])
def test_a_dataset_that_has_lost_its_name_is_private_when_it_is_pushed_again_without_a_choice(
    here: Node, there: Node, *, is_chosen: bool
) -> None:
    with there.served(there.authorizer) as base:
        here.push("cities", f"odf+{base}/cities", token=there.token)
        there.set_visibility("cities", Rule.PRIVATE)
        there.catalog.remove("cities")
        public = DatasetVisibility.PUBLIC
        here.push("cities", f"odf+{base}/cities", token=there.token, visibility=public, is_chosen=is_chosen)
    assert there.visibility("cities") is (Rule.PUBLIC if is_chosen else Rule.PRIVATE)


@pytest.mark.parametrize("scheme", ["", "odf+"], ids=["simple", "smart"])
def test_a_copy_of_a_dataset_readable_by_local_programs_is_private_without_a_token(
    here: Node, there: Node, scheme: str
) -> None:
    here.set_visibility("cities", Rule.PRIVATE)
    local = Authorizer(catalog=here.catalog, local_writers="loopback", directory=here.directory)
    with here.served(local) as base:
        assert there.pull(f"{scheme}{base}/cities", "copy", privacy=there.privacy)[-1].is_private
    assert there.visibility("copy") is Rule.PRIVATE


def test_an_anonymous_push_from_elsewhere_creates_no_dataset_that_it_could_not_read(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "_why_not_local", lambda _: "the request comes from elsewhere")
    trusting = Authorizer(catalog=there.catalog, local_writers="anywhere", directory=there.directory)
    with there.served(trusting) as base:
        with pytest.raises(InvalidInput, match="is to be private") as refused:
            here.push("cities", f"odf+{base}/cities", is_chosen=True)
        assert "log in there" in refused.value.advice()
        assert not list(there.catalog.entries())
        here.push("cities", f"odf+{base}/cities")
    assert there.visibility("cities") is Rule.PUBLIC


def test_a_private_copy_stays_private_without_its_database(here: Node, there: Node) -> None:
    here.set_visibility("cities", Rule.PRIVATE)
    with here.served(here.authorizer) as base:
        there.pull(f"{base}/cities", "copy", token=here.token, privacy=there.privacy)
    lost = Directory(AccessStore(None), is_multi_tenant=False, datasets=there.datasets)
    assert lost.visibility(require_entry(there.catalog, "copy").incarnation) is Rule.PRIVATE


def test_a_copy_that_needs_no_token_has_the_default_visibility(here: Node, there: Node) -> None:
    with here.served(here.authorizer) as base:
        assert not there.pull(f"{base}/cities", "copy", privacy=there.privacy)[-1].is_private
    assert there.visibility("copy") is Rule.PUBLIC


@pytest.mark.parametrize(
    ("asked", "is_here", "is_there"),
    [
        (None, Rule.PUBLIC, Rule.PUBLIC),
        (None, Rule.PRIVATE, Rule.PRIVATE),
        (DatasetVisibility.PRIVATE, Rule.PUBLIC, Rule.PRIVATE),
        (DatasetVisibility.PUBLIC, Rule.PRIVATE, Rule.PUBLIC),
    ],
)
def test_a_node_without_accounts_keeps_a_visibility_that_was_chosen(
    here: Node, there: Node, asked: DatasetVisibility | None, is_here: Rule, is_there: Rule
) -> None:
    here.set_visibility("cities", is_here)
    chosen = {} if asked is None else {"visibility": asked, "is_chosen": True}
    with there.served(there.authorizer) as base:
        here.push("cities", f"odf+{base}/cities", token=there.token, privacy=here.privacy, **chosen)
    assert there.visibility("cities") is is_there


@pytest.mark.parametrize("path", ["cities", "ann/cities"])
def test_a_private_dataset_is_not_sent_to_an_implementation_that_could_not_keep_it_private(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(smart_routes, "msg", without_choices())
    with there.served(there.authorizer) as base:
        target = f"odf+{base}/{path}"
        with pytest.raises(InvalidInput, match="is to be private, but everyone who reaches") as refused:
            here.push("cities", target, is_chosen=True, token=there.token)
        assert "--visibility public" in refused.value.advice()
        assert not list(there.catalog.entries())
        here.push("cities", target, token=there.token)
        here.coordinator.push("cities", "Oslo", minute=9)
        with pytest.raises(AnotherVisibility):
            here.push("cities", target, is_chosen=True, token=there.token)


@pytest.mark.parametrize("is_there", Rule)
def test_an_implementation_that_does_not_say_who_reads_a_dataset_is_asked_without_the_token(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch, is_there: Rule
) -> None:
    with there.served(there.authorizer) as base:
        here.push("cities", f"odf+{base}/cities", token=there.token)
        there.set_visibility("cities", is_there)
        here.coordinator.push("cities", "Oslo", minute=9)
        monkeypatch.setattr(simple_protocol, "EVERYONE_HEADER", "unknown-header")
        for wanted in (DatasetVisibility.PRIVATE, DatasetVisibility.PUBLIC):
            before = there.head("cities")
            if wanted.name == is_there.name:
                here.push(
                    "cities", f"odf+{base}/cities", token=there.token, visibility=wanted, is_chosen=True
                )
                assert there.head("cities") == here.head("cities")
                here.coordinator.push("cities", "Rome", minute=10)
            else:
                with pytest.raises(AnotherVisibility):
                    here.push(
                        "cities", f"odf+{base}/cities", token=there.token, visibility=wanted, is_chosen=True
                    )
                assert there.head("cities") == before


def test_a_server_that_redirects_to_its_login_is_read_by_those_with_a_token_only() -> None:
    async def serve(request: web.Request) -> web.Response:
        if request.path == "/login":
            return web.Response(text="<html>log in")
        if "Authorization" not in request.headers:
            raise web.HTTPFound("/login")
        return web.Response(text=str(a_hash("head")))

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    with running(app) as base:
        dataset = HttpDataset(f"{base}/cities", "odf_token")
        assert dataset.head() == a_hash("head")
        assert not dataset.is_read_by_everyone()


def test_another_implementation_with_accounts_keeps_it_private(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart_routes, "msg", without_choices())
    other = Node(tmp_path / "other", is_multi_tenant=True)
    with other.served(other.authorizer) as base:
        here.push("cities", f"odf+{base}/ann/cities", is_chosen=True, token=other.token)
    assert other.visibility("ann/cities") is Rule.PRIVATE


def test_a_push_without_a_target_goes_to_the_last_one(here: Node, there: Node, tmp_path: Path) -> None:
    folder = (tmp_path / "folder").as_uri()
    with there.served(there.authorizer) as base:
        for place in (folder, f"odf+{base}/cities", folder, f"odf+{base}/cities"):
            here.push("cities", place, token=there.token)
        here.coordinator.push("cities", "Oslo", minute=9)
        *_, last = here.push("cities", "", token=there.token)
        assert (last.state, last.target) == ("updated", f"odf+{base}/cities")
        assert there.head("cities") == here.head("cities")
        *_, again = here.push("cities", "", token=there.token)
        assert (again.state, again.target) == ("up-to-date", f"odf+{base}/cities")


def test_a_private_dataset_is_pushed_to_a_folder_with_its_permissions(here: Node, tmp_path: Path) -> None:
    here.set_visibility("cities", Rule.PRIVATE)
    folder = tmp_path / "backup"
    first, *_, last = here.push("cities", folder.as_uri(), privacy=here.privacy)
    assert (first.is_private, first.target, last.state) == (True, folder.as_uri(), "updated"), (
        "it is said before"
    )
    assert (folder / "refs" / "head").exists()
    here.set_visibility("cities", Rule.PUBLIC)
    assert not any(step.is_private for step in here.push("cities", folder.as_uri(), privacy=here.privacy))


@pytest.mark.parametrize(
    ("is_multi_tenant", "choice", "expected"),
    [(False, None, Rule.PUBLIC), (False, Rule.PRIVATE, Rule.PRIVATE), (True, None, Rule.PRIVATE)],
)
def test_a_copy_from_the_home_of_a_node_is_private_if_the_dataset_may_be(
    here: Node, there: Node, is_multi_tenant: bool, choice: Rule | None, expected: Rule
) -> None:
    folder = here.blobs.index_folder(require_entry(here.catalog, "cities").dataset_id).parent
    if is_multi_tenant:
        require_tenancy(Settings(home=folder.parent.parent, tenancy=MULTI_TENANT))
    if choice is not None:
        here.set_visibility("cities", choice)

    *_, last = there.pull(folder.as_uri(), "copy", privacy=there.privacy)

    assert (there.visibility("copy"), last.is_private) == (expected, expected is Rule.PRIVATE)


def test_a_copy_from_a_bucket_is_private_if_it_is_read_with_credentials() -> None:
    location = S3Location.parse("s3://team/cities")
    own, public = S3Access(access_key="key", secret_key="secret"), S3Access()
    assert [S3Dataset(location, access).is_private() for access in (own, public)] == [True, False]
    assert S3Dataset(location, S3Access(credentials_file=Path("credentials"))).is_private()


def test_a_copy_from_a_folder_whose_notes_are_closed_is_private(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = here.blobs.index_folder(require_entry(here.catalog, "cities").dataset_id).parent
    notes = folder / "notes" / PRIVATE_MARK
    exists = Path.exists

    def closed(path: Path) -> bool:
        if path == notes:
            raise PermissionError(path)
        return exists(path)

    monkeypatch.setattr(Path, "exists", closed)
    assert there.pull(folder.as_uri(), "copy", privacy=there.privacy)[-1].is_private


@pytest.mark.parametrize("through", ["link", "../datasets"])
def test_a_copy_from_the_home_of_a_multi_tenant_node_is_private_by_whatever_path(
    tmp_path: Path, here: Node, there: Node, through: str
) -> None:
    folder = here.blobs.index_folder(require_entry(here.catalog, "cities").dataset_id).parent
    require_tenancy(Settings(home=folder.parent.parent, tenancy=MULTI_TENANT))
    (tmp_path / "link").symlink_to(folder)
    path = tmp_path / "link" if through == "link" else folder.parent / through / folder.name

    assert there.pull(f"file://{path}", "copy", privacy=there.privacy)[-1].is_private


@pytest.mark.parametrize("choice", [None, Rule.PUBLIC])
def test_a_copy_becomes_private_with_its_source_unless_it_is_public_by_choice(
    here: Node, there: Node, choice: Rule | None
) -> None:
    folder = here.blobs.index_folder(require_entry(here.catalog, "cities").dataset_id).parent
    there.pull(folder.as_uri(), "copy", privacy=there.privacy)
    assert there.visibility("copy") is Rule.PUBLIC
    if choice is not None:
        there.set_visibility("copy", choice)
    here.set_visibility("cities", Rule.PRIVATE)
    here.coordinator.push("cities", "Oslo", minute=9)

    steps = list(there.pull(folder.as_uri(), "copy", privacy=there.privacy))

    expected = choice or Rule.PRIVATE
    assert (steps[-1].state, steps[-1].is_private) == ("updated", expected is Rule.PRIVATE)
    assert there.visibility("copy") is expected
