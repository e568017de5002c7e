"""What the transfer of one new block takes, and in how many round trips, on chains of any length."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, Protocol

from rows import Row, Target, held_against

CHAINS: Final = (1_000, 100_000)
DELAY: Final = 0.02  # seconds of a round trip
LONG_DELAY: Final = 0.12
REPEATS: Final = 5
AS_FAST: Final = Target(judged="ratio", sense="≤", bound=1.5)
FEW_TRIPS: Final = Target(judged="value", sense="≤", bound=4)

Seconds = Mapping[float, Sequence[float]]
"""The seconds of each transfer, by the delay."""


class Measure(Protocol):
    """Measures transfers of the newest block of a chain of a length, which has a slice or none."""

    def __call__(self, length: int, *, has_slice: bool) -> Seconds:
        """Return what they took."""


def rows_of_one_block(
    what: str, measure: Measure, trips: Sequence[str], with_slice: Sequence[str]
) -> Iterator[Row]:
    """Yield the rows of a transfer whose round trips are known, without and with a slice."""
    short, long = (measure(length, has_slice=False) for length in CHAINS)
    yield held_against(
        f"{what} one new block of {CHAINS[1]:,}, {DELAY * 1000:g} ms, median of {REPEATS}",
        median(long[DELAY]) * 1000,
        "ms",
        peer=(f"one of {CHAINS[0]:,}, median of {REPEATS}", median(short[DELAY]) * 1000),
        target=AS_FAST,
        detail=_lowest_and_highest(short[DELAY], long[DELAY]),
    )
    yield _trips(f"{what} one new block of {CHAINS[1]:,}", long, trips)
    yield _trips(
        f"{what} one new block with a slice of 1.5 MiB", measure(CHAINS[0], has_slice=True), with_slice
    )


def _trips(case: str, seconds: Seconds, expected: Sequence[str]) -> Row:
    """Return how many round trips were made: one more takes the longer delay once more, whatever both ends work."""
    slower = median(seconds[LONG_DELAY]) - median(seconds[DELAY])
    return held_against(
        f"{case}, from {DELAY * 1000:g} to {LONG_DELAY * 1000:g} ms",
        round(slower / (LONG_DELAY - DELAY), 1),
        "round trips",
        peer=(", ".join(expected), float(len(expected))),
        target=FEW_TRIPS,
    )


def _lowest_and_highest(short: Sequence[float], long: Sequence[float]) -> dict[str, float]:
    """Return the lowest and highest ms of the transfers of a long chain, and of those of a short one, its peer."""
    numbers = (min(long), max(long), min(short), max(short))
    names = ("lowest", "highest", "its lowest", "its highest")
    return {name: round(1000 * number, 1) for name, number in zip(names, numbers, strict=True)}
