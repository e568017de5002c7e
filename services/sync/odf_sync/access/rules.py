"""Permissions of roles, decisions on requests (wire-facts §8.6), and entries of the audit log. No IO."""

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum, auto
from typing import Final

from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.ports.store import Incarnation
from odf_common.proto.odf.bus.v1.bus_pb2 import AccessDecision
from odf_common.service.audit import bound_text


class Action(StrEnum):
    """The type of access to a dataset that a request needs."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"  # write, or create the dataset if it does not exist
    MANAGE = "manage"  # replace its history


class Role(IntEnum):
    """The role of an account on a dataset; each role includes the permissions of the roles before it."""

    READER = 1
    EDITOR = 2
    MAINTAINER = 3
    OWNER = 4


class Visibility(StrEnum):
    """The visibility of a dataset: everyone can read it, or only accounts with a role."""

    PUBLIC = "public"
    PRIVATE = "private"


class Scope(StrEnum):
    """The maximum access that a token allows."""

    READ = "read"
    WRITE = "write"
    MANAGE = "manage"


class Verdict(Enum):
    """The decision on a request."""

    ALLOWED = auto()
    FORBIDDEN = auto()
    HIDDEN = auto()
    """Forbidden, and the caller must not learn that the dataset exists."""
    UNAUTHENTICATED = auto()
    """An anonymous caller tries to create a dataset."""
    NOT_OWN_ACCOUNT = auto()
    """A caller tries to create a dataset in another account, or with a token that does not allow it."""


NEEDED: Final = {
    Action.READ: Role.READER,
    Action.WRITE: Role.EDITOR,
    Action.CREATE: Role.EDITOR,
    Action.MANAGE: Role.MAINTAINER,
}
AT_MOST: Final = {Scope.READ: Role.READER, Scope.WRITE: Role.EDITOR, Scope.MANAGE: Role.OWNER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account, which can own datasets and log in."""

    id: DatasetId
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request: its account, and the restrictions of its token."""

    account: Account | None = None
    """The account of the caller, None if anonymous."""
    scope: Scope = Scope.MANAGE
    only: Incarnation | None = None
    """The only dataset that the token is valid for; None if it is valid for all."""
    token_id: str = ""
    """The public id of the token, even if the token is invalid."""
    has_invalid_token: bool = False
    why_not_local: str | None = None
    """The reason why the request does not count as local, from a program on the node's machine; None if it does."""

    @property
    def name(self) -> str:
        """Return the name of the account, empty if anonymous."""
        return "" if self.account is None else str(self.account.name)

    def limit_role(self, role: Role | None, dataset: Incarnation | None) -> Role | None:
        """Return a role on a dataset as restricted by the caller's token; None if nothing remains."""
        if role is None or (self.only is not None and self.only != dataset):
            return None
        return min(role, AT_MOST[self.scope])


def decide(action: Action, role: Role | None, visibility: Visibility) -> Verdict:
    """Return the decision on access to an existing dataset."""
    if role is not None and role >= NEEDED[action]:
        return Verdict.ALLOWED
    if visibility is Visibility.PUBLIC:
        return Verdict.ALLOWED if action is Action.READ else Verdict.FORBIDDEN
    return Verdict.HIDDEN if role is None else Verdict.FORBIDDEN


def decide_creation(caller: Caller, owner: Name | None) -> Verdict:
    """Return the decision on the creation of a dataset in an account of a multi-tenant node."""
    if caller.account is None:
        return Verdict.UNAUTHENTICATED
    role = Role.OWNER if caller.account.name == owner else None
    limited = caller.limit_role(role, None)
    may = limited is not None and limited >= Role.EDITOR
    return Verdict.ALLOWED if may else Verdict.NOT_OWN_ACCOUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The facts of a request for the audit log."""

    caller: Caller
    address: str
    """The remote address of the connection."""
    forwarded_for: str = ""
    method: str
    route: str = ""
    """The pattern of the path, empty if no route matches."""
    action: str = ""
    """The requested action, empty for a route without a dataset."""
    dataset: str = ""
    """The name of the dataset, as in the path."""
    login: str = ""
    """The account name that was used in a login."""


def decision(question: Question, *, is_allowed: bool, status: int = 0) -> AccessDecision:
    """Return the entry of the audit log for a decision."""
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
