"""The table of what was measured, for a terminal and for docs/failure-modes.md."""

from collections.abc import Iterable, Sequence

from tests.containers.load import Answer
from tests.containers.outcome import Outcome

HEADER = (
    "| fault | lost, twice, wrong | went on after (s) | `odf status` named (s) | answers over HTTP (s) | by hand |",
    "|---|---|---|---|---|---|",
)
NEVER_STOPPED_SECONDS = 5.0  # without a block


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the table, a row for each case."""
    return "\n".join((*HEADER, *map(_row, outcomes)))


def _row(outcome: Outcome) -> str:
    cells = (outcome.case, _damage(outcome), _went_on(outcome), _status(outcome), answers(outcome.answers))
    return f"| {' | '.join((*cells, ', '.join(outcome.by_hand) or 'no'))} |"


def _damage(outcome: Outcome) -> str:
    counts = f"{outcome.lost}, {outcome.twice}, {len(outcome.wrong)}"
    invalid = [f"{name} {verdict}" for name, verdict in outcome.verdicts.items() if verdict != "valid"]
    return "; ".join((counts, *invalid))


def _went_on(outcome: Outcome) -> str:
    stopped = outcome.stalled_seconds > NEVER_STOPPED_SECONDS
    ingest = _seconds(outcome.ingest_seconds) if stopped else "never stopped"
    start = "" if outcome.start_seconds is None else f"; its start {outcome.start_seconds:.0f}"
    return f"{ingest}, {_seconds(outcome.derivative_seconds)}{start}"


def _seconds(seconds: float | None) -> str:
    return "**never**" if seconds is None else f"{max(seconds, 0.0):.0f}"


def _status(outcome: Outcome) -> str:
    if outcome.status_seconds is None:
        return "–"
    return f"{outcome.status} ({outcome.status_seconds:.0f})"


def answers(given: Sequence[Answer]) -> str:
    """Return the kinds of answers, errors first, and the longest time that one of each took."""
    kinds: dict[str, float] = {}
    for one in sorted(given, key=lambda one: one.status, reverse=True):
        kinds[_kind(one)] = max(one.seconds, kinds.get(_kind(one), 0.0))
    return "; ".join(f"{kind} ({seconds:.0f})" for kind, seconds in kinds.items())


def _kind(answer: Answer) -> str:
    if answer.status == 0:
        return f"no answer, {answer.text.split(':')[0]}"
    if answer.status == 200:
        return "200"
    return f"{answer.status} with{'' if answer.retry_after else 'out'} `Retry-After`"
