"""Finds the URL of a remote dataset that is given as a URL, or by alias or id in a named repository."""

import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.repository_urls import SMART_PREFIX, dataset_url, require_no_credentials
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.dataset_refs import (
    AmbiguousAlias,
    DatasetId,
    Name,
    RemoteAlias,
    RemoteId,
    Url,
    parse_ref_any,
)
from odf_sync.access.remote_login import AccessDenied, NothingVisible, TokenFor, no_token
from odf_sync.repositories.http_dataset import HttpDataset, UnexpectedStatus

DOCUMENT_LIMIT: Final = 64 * 1024  # bytes
CLIENT_ERRORS: Final = range(400, 500)
TRY_LATER: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The URL of a remote dataset, and its id if the user gave that."""

    url: str
    dataset: DatasetId | None = None


def locate(repositories: LocalRepositories, text: str, token_for: TokenFor = no_token) -> Location:
    """Return the location of a dataset. A dataset given by id, or without an account, is looked up at the node.

    Raises `InvalidInput` unless the text names a remote dataset, `UnknownRepository`, and `NotFound` if the repository
    does not have that id.
    """
    match parse_ref_any(text):
        case Url():
            require_no_credentials(text)
            return Location(url=text)
        case AmbiguousAlias(first=repo, dataset=dataset):
            base = repositories.find(repo).url
            account = _account_meant(base, token_for)
            return Location(url=dataset_url(base, RemoteAlias(repo=repo, account=account, dataset=dataset)))
        case RemoteAlias(repo=repo) as alias:
            return Location(url=dataset_url(repositories.find(repo).url, alias))
        case RemoteId(repo=Name() as repo, id=dataset_id):
            return Location(
                url=_url_of_id(repositories.find(repo).url, dataset_id, token_for), dataset=dataset_id
            )
        case _:
            raise InvalidInput(text=f"{text!r} is not a remote dataset; expected a URL or REPO/DATASET")


def name_in_repository(
    repositories: LocalRepositories, repo: Name, dataset: DatasetId, name: Name, token_for: TokenFor
) -> RemoteAlias:
    """Return the name of a dataset in a repository, or the name under which a push creates it.

    A node is asked for its name of the id. A new dataset goes to the account of the token, if the node has accounts.
    Raises `UnknownRepository`, and `LoginRequired` if that needs a login.
    """
    base = repositories.find(repo).url
    if not _is_node(base):
        return RemoteAlias(repo=repo, dataset=name)
    base = base.removeprefix(SMART_PREFIX)
    has_accounts = is_multi_tenant(base, token_for)
    account = _own_account(base, token_for) if has_accounts else None
    try:
        return _name_of_id(base, repo, dataset, token_for, is_multi_tenant=has_accounts)
    except NotFound:
        return RemoteAlias(repo=repo, account=account, dataset=name)


def _url_of_id(base: str, dataset: DatasetId, token_for: TokenFor) -> str:
    if not _is_node(base):
        return dataset_url(base, dataset.folder)  # as this node keeps its own datasets
    rest = base.removeprefix(SMART_PREFIX)
    has_accounts = is_multi_tenant(rest, token_for)
    try:
        named = _name_of_id(rest, Name("any"), dataset, token_for, is_multi_tenant=has_accounts)
    except NotFound as error:
        what = f"{dataset} in {base}"
        raise (NotFound(what=what) if token_for(rest) else NothingVisible(what=what, url=rest)) from error
    return dataset_url(base, named)


def _is_node(base: str) -> bool:
    return urlsplit(base).scheme.rpartition("+")[2] in ("http", "https")


def _name_of_id(
    base: str, repo: Name, dataset: DatasetId, token_for: TokenFor, *, is_multi_tenant: bool
) -> RemoteAlias:
    path = f"datasets/{dataset}"
    match _document(base, path, token_for):
        case {"owner": {"accountName": str(owner)}, "datasetName": str(name)}:
            account = Name(owner) if is_multi_tenant else None
            return RemoteAlias(repo=repo, account=account, dataset=Name(name))
        case _:
            raise InvalidInput(text="not the name of a dataset", where=base + path)


def is_multi_tenant(base: str, token_for: TokenFor) -> bool:
    """Return whether dataset names on the server begin with an account.

    False if the server does not say (wire-facts §8.7).
    """
    try:
        return _document(base, "info", token_for).get("isMultiTenant") is True
    except (NotFound, AccessDenied):
        return False
    except UnexpectedStatus as error:
        if error.status in TRY_LATER or error.status not in CLIENT_ERRORS:
            raise
        return False


def _account_meant(base: str, token_for: TokenFor) -> Name | None:
    """Return the account of a name without one: on a node with accounts the user's own, if logged in; else None."""
    rest = base.removeprefix(SMART_PREFIX)
    if not _is_node(base) or not token_for(rest) or not is_multi_tenant(rest, token_for):
        return None
    return _own_account(rest, token_for)


def _own_account(base: str, token_for: TokenFor) -> Name:
    match _document(base, "accounts/me", token_for):
        case {"accountName": str(account)}:
            return Name(account)
        case _:
            raise InvalidInput(text="not the name of an account", where=f"{base}accounts/me")


def _document(base: str, path: str, token_for: TokenFor) -> dict[str, object]:
    raw = HttpDataset(base, token_for(base)).document(path, DOCUMENT_LIMIT)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text="not JSON", where=base + path) from error
    if not isinstance(document, dict):
        raise InvalidInput(text="not an object", where=base + path)
    return document
