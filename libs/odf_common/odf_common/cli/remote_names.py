"""Names of remote datasets: URLs, and datasets of named repositories."""

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import AmbiguousAlias, RemoteAlias, RemoteId, Url, parse_ref_any
from odf_common.service.settings import load


def is_remote(name: str) -> bool:
    """Return whether a name is that of a remote dataset; `a/b` is, if `a` is a repository."""
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
            return first in LocalRepositories(load().home).names()
        case _:
            return False
