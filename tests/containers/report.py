"""The table of what was measured, for a terminal and for docs/failure-modes.md."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.containers.load import Answer
from tests.containers.outcome import Outcome

HEADER = (
    "| fault | lost, twice, wrong | ingest, derivatives (s) | `odf status` | HTTP | by hand |",
    "|---|---|---|---|---|---|",
)


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the table, a row for each case."""
    return "\n".join((*HEADER, *map(_row, outcomes)))


def _row(outcome: Outcome) -> str:
    went_on = f"{_seconds(outcome.ingest_seconds)}, {_seconds(outcome.derivative_seconds)}"
    if outcome.stalled_seconds < 5:
        went_on = f"never stopped, {_seconds(outcome.derivative_seconds)}"
    wrong = f"{outcome.lost}, {outcome.twice}, {len(outcome.wrong)}"
    if set(outcome.verdicts.values()) != {"valid"}:
        wrong += f"; {outcome.verdicts}"
    by_hand = ", ".join(outcome.by_hand) or "no"
    cells = (outcome.case, wrong, went_on, _status(outcome), answers(outcome.answers), by_hand)
    return f"| {' | '.join(cells)} |"


def _seconds(seconds: float | None) -> str:
    return "**never**" if seconds is None else f"{seconds:.1f}"


def _status(outcome: Outcome) -> str:
    if outcome.status_seconds is None:
        return outcome.status or "nothing"
    return f"{outcome.status}, {outcome.status_seconds:.0f} s"


def answers(given: Sequence[Answer]) -> str:
    """Return how many answers of each kind there were, and the longest time that one of them took."""
    kinds = defaultdict(list)
    for one in given:
        kinds[_kind(one)].append(one.seconds)
    return "; ".join(f"{len(times)}× {kind}, ≤ {max(times):.1f} s" for kind, times in sorted(kinds.items()))


def _kind(answer: Answer) -> str:
    if answer.status == 0:
        return f"no answer ({answer.text.split(':')[0]})"
    if answer.retry_after is not None:
        return f"{answer.status} (Retry-After {answer.retry_after})"
    return str(answer.status)
