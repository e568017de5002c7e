"""Preconditions of requests: the versions that resources must have."""

from odf_common.errors import Conflict
from odf_coordinator.resources.documents import etag
from odf_coordinator.resources.store import StoredResource


class PreconditionFailed(Conflict):
    """The resource is not in the version that the request expects."""

    MESSAGE = "expected version {expected}, found {actual}"
    ADVICE = "read the resource again, and repeat the change"

    expected: str
    actual: str


class AlreadyApplied(Conflict):
    """A resource that is to be created exists."""

    MESSAGE = "{what} exists already"
    ADVICE = "use PUT or PATCH to change it"

    what: str


def require_etag(found: StoredResource, expected: str) -> None:
    """Raise `PreconditionFailed` unless a resource is in the expected version; empty: any."""
    if expected:
        require_version(etag(found), expected)


def require_version(actual: str, expected: str) -> None:
    """Raise `PreconditionFailed` unless two versions are equal; `*` stands for any."""
    if expected not in {actual, "*"}:
        raise PreconditionFailed(expected=expected, actual=actual)
