"""Audit entries of requests over HTTP (docs/formats/audit.md)."""

from dataclasses import dataclass

from odf_common.proto.odf.bus.v1.bus_pb2 import AccessDecision
from odf_common.service.audit import bound_text
from odf_sync.access.rules import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The action of a request."""

    caller: Caller
    address: str
    """The remote address of the connection."""
    forwarded_for: str = ""
    method: str
    route: str = ""
    """The path's pattern; empty if there is no such path."""
    action: str = ""
    """Empty for a route of no dataset."""
    dataset: str = ""
    """The dataset's name, as in the path."""
    login: str = ""
    """The account that a login named."""


def decision(question: Question, *, is_allowed: bool, status: int = 0) -> AccessDecision:
    """Return the entry for a decision."""
    caller = question.caller
    return AccessDecision(
        account=bound_text(caller.name or question.login),
        account_id="" if caller.account is None else str(caller.account.id),
        token_id=caller.token_id,
        address=bound_text(question.address),
        forwarded_for=bound_text(question.forwarded_for),
        method=bound_text(question.method),
        route=question.route,
        action=question.action,
        dataset=bound_text(question.dataset),
        is_allowed=is_allowed,
        status=status,
    )
