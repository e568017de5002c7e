"""Outcomes of a proposal: committed, overtaken, or refused; retries of changes that were overtaken."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from odf_common.chain.state import ChainState
from odf_common.errors import HeadMoved, OdfError, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId

T = TypeVar("T")
MAX_ATTEMPTS: Final = 20  # a busy root receives about ten commits a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The events are in the chain, whose head is at least `state.head`; `already`: they were before."""

    state: ChainState
    already: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Another block was committed first; nothing has changed."""

    expected: Multihash | None
    head: Multihash | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Not acceptable, and a retry will not help; nothing has changed."""

    code: str
    text: str


Outcome = Committed | Overtaken | Refusal


def refusal_of(error: OdfError) -> Refusal:
    """Return an error as a refusal that can be sent."""
    return Refusal(code=error.code, text=str(error))


def require_committed(dataset: DatasetId, outcome: Outcome) -> Committed:
    """Return the commit; raises `HeadMoved` or `Refused` for other outcomes."""
    match outcome:
        case Committed():
            return outcome
        case Overtaken(expected=expected, head=head):
            raise HeadMoved(dataset=str(dataset), expected=_text(expected), actual=_text(head))
        case Refusal(code=code, text=text):
            raise Refused(reason=code, text=text)


def retry_on_conflict(change: Callable[[], T]) -> T:
    """Return the result of `change`, retrying it after each `HeadMoved`."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return change()
        except HeadMoved:
            continue
    return change()


def _text(head: Multihash | None) -> str | None:
    return None if head is None else str(head)
