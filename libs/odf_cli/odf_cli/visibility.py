"""Remarks that a dataset is private because of the datasets that it is derived from, and on its derivatives."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from odf_cli import clients
from odf_cli.output import remark
from odf_common.errors import OdfError

if TYPE_CHECKING:
    from odf_common.proto.odf.node.v1.access_pb2 import DatasetAccess


def say_if_private(aliases: Iterable[str]) -> None:
    """Print a remark for each dataset that is derived from private ones, or was published with them.

    Nothing is printed for references, or if sync does not answer.
    """
    aliases = tuple(alias for alias in aliases if "@" not in alias)
    if not aliases:
        return
    from odf_common.proto.odf.node.v1.access_pb2 import ShowAccessRequest

    with suppress(OdfError), clients.access(timeout=0) as access:
        for alias in aliases:
            request = ShowAccessRequest(ref=alias)
            shown = access.ShowAccess(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
            if shown.private_origins:
                _say_private(shown, "")
            elif shown.published_origins and shown.visibility == "public":
                remark(
                    f"{alias} is public, as it was published with {', '.join(shown.published_origins)}; "
                    f"`odf access set {alias} --visibility private` ends that"
                )


@contextmanager
def said_if_private() -> Iterator[set[str]]:
    """Yield a set for the names of copies that become private.

    After the `with` block, even if it fails, print why each is private, and list its derivatives.
    """
    copies = set[str]()
    try:
        yield copies
    finally:
        for alias in sorted(copies):
            _say_private_copy(alias)


def _say_private_copy(alias: str) -> None:
    from odf_common.proto.odf.node.v1.access_pb2 import ShowAccessRequest

    with suppress(OdfError), clients.access(timeout=0) as access:
        request = ShowAccessRequest(ref=alias, with_derivatives=True)
        shown = access.ShowAccess(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
        _say_private(shown, "it may be private at its source, or was private here before")
        say_derivatives(shown)


def _say_private(shown: "DatasetAccess", otherwise: str) -> None:
    why = f"it comes from {', '.join(shown.private_origins)}" if shown.private_origins else otherwise
    remark(
        f"{shown.dataset} is private here, since {why}; "
        f"`odf access set {shown.dataset} --visibility public` lets everyone read it"
    )


def say_derivatives(shown: "DatasetAccess") -> None:
    """Print the derivatives of a dataset by visibility, if there are any."""
    by_visibility: dict[str, list[str]] = {}
    for derived in shown.derivatives:
        by_visibility.setdefault(derived.visibility, []).append(derived.dataset)
    if by_visibility:
        listed = "; ".join(f"{key}: {', '.join(names)}" for key, names in sorted(by_visibility.items()))
        remark(f"derived from {shown.dataset}: {listed}")
