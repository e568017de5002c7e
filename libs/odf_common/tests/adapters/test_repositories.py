"""Named repositories: manifests in the node's home."""

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from odf_common.adapters.local import durable
from odf_common.adapters.local.repositories import LocalRepositories, UnknownRepository
from odf_common.adapters.repository_urls import dataset_url, repository_url, require_no_credentials
from odf_common.errors import AlreadyExists, InvalidInput
from odf_common.identity.dataset_refs import Name, parse_remote_alias
from odf_common.metadata.events import Repository

SHOP = Name("shop")


def test_a_repository_is_a_manifest_that_is_found_by_name(tmp_path: Path) -> None:
    known = LocalRepositories(tmp_path)
    assert known.names() == ()
    known.add(Name("Shop"), "https://example.org/data")
    assert known.find(SHOP) == Repository(url="https://example.org/data/")
    assert known.names() == (SHOP,)
    (file,) = (tmp_path / "repositories").iterdir()
    assert file.name == "shop.yaml"
    assert file.read_text() == "kind: Repository\nversion: 1\ncontent:\n  url: https://example.org/data/\n"


def test_a_name_is_taken_once_and_can_be_freed(tmp_path: Path) -> None:
    known = LocalRepositories(tmp_path)
    known.add(SHOP, "file:///srv/data")
    with pytest.raises(AlreadyExists, match="SHOP"):
        known.add(Name("SHOP"), "file:///srv/other")
    known.remove(SHOP)
    with pytest.raises(UnknownRepository):
        known.remove(SHOP)
    with pytest.raises(UnknownRepository) as caught:
        known.find(SHOP)
    assert "odf repo add" in caught.value.advice()
    assert known.names() == ()


def test_of_two_that_add_a_name_at_the_same_time_one_waits_for_the_other(tmp_path: Path) -> None:
    known = LocalRepositories(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with durable.lock_file(tmp_path / "locks" / "repositories"):
            adding = pool.submit(known.add, SHOP, "file:///srv/data")
            assert not wait([adding], timeout=0.1).done
            assert known.names() == ()
        adding.result()
    assert known.names() == (SHOP,)


@pytest.mark.parametrize(
    "manifest",
    ["", "kind: Repository", "kind: Repository\nversion: 1\ncontent: {url: 'gopher://example.org'}\n"],
)
def test_a_damaged_manifest_is_named_and_can_be_removed(tmp_path: Path, manifest: str) -> None:
    known = LocalRepositories(tmp_path)
    known.add(SHOP, "file:///srv/data")
    (tmp_path / "repositories" / "shop.yaml").write_text(manifest)
    (tmp_path / "repositories" / "not a name.yaml").touch()
    with pytest.raises(InvalidInput, match=r"shop\.yaml|expected a URL that begins with file"):
        known.find(SHOP)
    assert known.names() == (SHOP,)
    known.remove(SHOP)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop",
        "/srv/data",
        "gopher://example.org",
        "http://",
        "https:///path",
        "http://example.org:port/",
        "file://host/srv",
        "file://srv",
        "https://example.org/?a=b",
        "https://example.org/#a",
        "https://exam ple.org/",
        "https://user:secret@example.org/",
        "https://token@example.org/",
    ],
)
def test_an_invalid_url_of_a_repository_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        repository_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://joe:secret@h:8/a", "`odf login https://h:8`"),
        ("odf+http://secret@h/a@b", "`odf login http://h`"),
        ("http://:secret@[::1/a", "`odf login http://[::1`"),
        ("http://a@secret@h?b", "`odf login http://h`"),
        ("http://@h", "`odf login http://h`"),
        ("s3+http://key:secret@h/bucket", "ODF_S3_SECRET_KEY"),
        ("s3://key:secret@bucket/a", "ODF_S3_SECRET_KEY"),
        ("ftp://joe:secret@h/a", "without them"),
    ],
)
def test_a_url_with_credentials_is_refused_with_what_to_do_instead(url: str, advice: str) -> None:
    with pytest.raises(InvalidInput, match="credentials do not belong in a URL") as caught:
        require_no_credentials(url)
    assert advice in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["flights@next", "http://h/a@b", "http://h?a@b", "http://h#a@b", "shop/a", ""]
)
def test_an_at_sign_elsewhere_is_not_of_credentials(text: str) -> None:
    require_no_credentials(text)


@pytest.mark.parametrize(
    "url", ["file:///srv", "http://a:80/x", "odf+https://a", "s3://bucket/prefix", "s3+http://a:9/b"]
)
def test_urls_of_repositories_end_with_a_slash(url: str) -> None:
    assert repository_url(url) == repository_url(url + "/") == url + "/"


def test_a_dataset_is_below_its_repository() -> None:
    assert dataset_url("http://a/", parse_remote_alias("shop/orders")) == "http://a/orders"
    assert dataset_url("http://a/", parse_remote_alias("shop/alice/orders")) == "http://a/alice/orders"
    assert dataset_url("file:///srv/", "fed01") == "file:///srv/fed01"
