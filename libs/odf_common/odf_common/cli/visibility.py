"""Says that a dataset is private because of what it comes from, and what that means for its derivatives."""

from collections.abc import Iterable
from contextlib import suppress

from odf_common.cli import clients
from odf_common.cli.output import remark
from odf_common.errors import OdfError
from odf_common.proto.odf.node.v1.access_pb2 import DatasetAccess, ShowAccessRequest


def say_if_private(aliases: Iterable[str]) -> None:
    """Name the private datasets that each of these comes from; of a reference, and without an answer, say nothing."""
    aliases = tuple(alias for alias in aliases if "@" not in alias)
    if not aliases:
        return
    with suppress(OdfError), clients.access(timeout=0) as access:
        for alias in aliases:
            request = ShowAccessRequest(ref=alias)
            shown = access.ShowAccess(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
            if shown.private_origins:
                remark(
                    f"{alias} is private, since it comes from {', '.join(shown.private_origins)}; "
                    f"`odf access set {alias} --visibility public` lets everyone read it"
                )


def say_private_copy(alias: str) -> None:
    """Say why a copy has become private, and list its derivatives with their visibility."""
    with suppress(OdfError), clients.access(timeout=0) as access:
        request = ShowAccessRequest(ref=alias, with_derivatives=True)
        shown = access.ShowAccess(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
        came_from = ", ".join(shown.private_origins)
        why = f"it comes from {came_from}" if came_from else "its source may be private"
        remark(
            f"{alias} is private here, since {why}; "
            f"`odf access set {alias} --visibility public` lets everyone read it"
        )
        say_derivatives(shown)


def say_derivatives(shown: DatasetAccess) -> None:
    """List the derivatives of a dataset by their visibility; nothing if there are none."""
    by_visibility: dict[str, list[str]] = {}
    for derived in shown.derivatives:
        by_visibility.setdefault(derived.visibility, []).append(derived.dataset)
    if by_visibility:
        listed = "; ".join(f"{key}: {', '.join(names)}" for key, names in sorted(by_visibility.items()))
        remark(f"derived from {shown.dataset}: {listed}")
