"""What the transfer of one new block takes, and in how many round trips, on chains of any length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from rows import Row, Target, held_against

CHAINS: Final = (1_000, 100_000)
DELAY: Final = 0.02  # seconds of a round trip
LONG_DELAY: Final = 0.12
REPEATS: Final = 5
AS_FAST: Final = Target(judged="ratio", sense="≤", bound=1.5)
FEW_TRIPS: Final = Target(judged="value", sense="≤", bound=4)

Seconds = Mapping[float, Sequence[float]]
"""The seconds of each transfer, by the delay."""


def rows_of_one_block(what: str, seconds_of: Callable[[int], Seconds], trips: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a transfer whose `trips` are known; `seconds_of` a chain of a length measures it.

    One round trip more takes the longer delay once more: the number of them is what is left of the work of both ends.
    """
    short, long = (seconds_of(length) for length in CHAINS)
    yield held_against(
        f"{what} one new block of {CHAINS[1]:,}, {DELAY * 1000:g} ms, median of {REPEATS}",
        median(long[DELAY]) * 1000,
        "ms",
        peer=(f"one of {CHAINS[0]:,}, median of {REPEATS}", median(short[DELAY]) * 1000),
        target=AS_FAST,
        detail=_lowest_and_highest(short[DELAY], long[DELAY]),
    )
    slower = median(long[LONG_DELAY]) - median(long[DELAY])
    yield held_against(
        f"{what} one new block of {CHAINS[1]:,}, from {DELAY * 1000:g} to {LONG_DELAY * 1000:g} ms",
        round(slower / (LONG_DELAY - DELAY), 1),
        "round trips",
        peer=(", ".join(trips), float(len(trips))),
        target=FEW_TRIPS,
    )


def _lowest_and_highest(short: Sequence[float], long: Sequence[float]) -> dict[str, float]:
    """Return the lowest and highest ms of the transfers of a long chain, and of those of a short one, its peer."""
    numbers = (min(long), max(long), min(short), max(short))
    names = ("lowest", "highest", "its lowest", "its highest")
    return {name: round(1000 * number, 1) for name, number in zip(names, numbers, strict=True)}
