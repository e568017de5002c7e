"""Names of remote datasets: URLs, and datasets of named repositories."""

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import AmbiguousAlias, RemoteAlias, RemoteId, Url, parse_ref_any
from odf_common.service.settings import load


def is_remote(name: str) -> bool:
    """Return whether a name is that of a remote dataset.

    `a/b` is, if `a` is a repository, unless it is a dataset of this node: an account may have the name of a repository.
    """
    try:
        ref = parse_ref_any(name)
    except InvalidInput:
        return False  # a pattern, a reference, or what the node will refuse
    match ref:
        case Url() | RemoteAlias():
            return True
        case RemoteId(repo=repo):
            return repo is not None
        case AmbiguousAlias(first=first):
            home = load().home
            return first in LocalRepositories(home).names() and LocalCatalog(home).by_alias(name) is None
        case _:
            return False
