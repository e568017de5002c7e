"""What a pull and a push of one new block take, and in how many round trips, on chains of any length."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from long_chains import Client, chain_in, linked_without_newest, written
from pull_chain import served
from push_chain import served_with_coordinator
from rows import Row, Target, held_against
from transfer_peers import DELAY, delayed_by, timed

CHAINS: Final = (1_000, 100_000)
LONG_DELAY: Final = 0.62  # far more than the work of both ends varies
REPEATS: Final = 5
AS_FAST: Final = Target(judged="ratio", sense="≤", bound=1.5)
FEW_TRIPS: Final = Target(judged="value", sense="≤", bound=4)

PULLED: Final = ("connect", "head", "pack")
PUSHED: Final = ("connect", "head", "upgrade", "exchange")

Seconds = Mapping[float, Sequence[float]]
"""The seconds of each transfer, by the delay."""


class Measure(Protocol):
    """Measures transfers of the newest block of a chain of a length, which has a slice or none."""

    def __call__(self, length: int, *, has_slice: bool) -> Seconds:
        """Return what they took."""


def run() -> list[Row]:
    """Return the rows; takes a quarter of an hour."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        pulled, pushed = Path(folder, "pull"), Path(folder, "push")
        return [
            *_rows("pull", partial(_newest_pulled, pulled), PULLED, (*PULLED, "object")),
            *_rows("push", partial(_newest_pushed, pushed), PUSHED, PUSHED),
        ]


def _rows(what: str, measure: Measure, trips: Sequence[str], with_slice: Sequence[str]) -> Iterator[Row]:
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


def _newest_pulled(folder: Path, length: int, *, has_slice: bool) -> Seconds:
    """Return the seconds of each pull of the newest block, each into a fresh copy of the home that lacks it."""
    name = f"{length}-{has_slice}"
    there, here = folder / name / "there", folder / name / "here"
    chain = chain_in(there, blocks=length, objects=0, is_newest_data=has_slice)
    dataset = written(there, chain)
    seconds: dict[float, list[float]] = {DELAY: [], LONG_DELAY: []}
    for delay in sorted(REPEATS * [*seconds]):
        linked_without_newest(there, here, dataset, chain)
        client = Client(here)
        client.coordinator.states.current(dataset)
        with served(there) as port, delayed_by(port, delay) as delayed:
            seconds[delay].append(timed(partial(client.pull, delayed)))
        shutil.rmtree(here)
    return seconds


def _newest_pushed(folder: Path, length: int, *, has_slice: bool) -> Seconds:
    """Return the seconds of each push of the newest block, each to a fresh copy of the home that lacks it."""
    name = f"{length}-{has_slice}"
    here, there = folder / name / "here", folder / name / "there"
    chain = chain_in(here, blocks=length, objects=0, is_newest_data=has_slice)
    dataset = written(here, chain)
    client = Client(here)
    client.coordinator.states.current(dataset)
    seconds: dict[float, list[float]] = {DELAY: [], LONG_DELAY: []}
    for delay in sorted(REPEATS * [*seconds]):
        linked_without_newest(here, there, dataset, chain)
        with served_with_coordinator(there, dataset) as port, delayed_by(port, delay) as delayed:
            seconds[delay].append(timed(partial(client.push, delayed)))
        shutil.rmtree(there)
    return seconds


def _trips(case: str, seconds: Seconds, expected: Sequence[str]) -> Row:
    """Return how many round trips were made: one more takes the longer delay once more, whatever both ends work.

    The fastest of each are compared, as work that takes longer now and then would count as a part of a trip.
    """
    slower = min(seconds[LONG_DELAY]) - min(seconds[DELAY])
    trips = slower / (LONG_DELAY - DELAY)
    return held_against(
        f"{case}, from {DELAY * 1000:g} to {LONG_DELAY * 1000:g} ms",
        round(trips),
        "round trips",
        peer=(", ".join(expected), float(len(expected))),
        target=FEW_TRIPS,
        detail={"before rounding": round(trips, 2)},
    )


def _lowest_and_highest(short: Sequence[float], long: Sequence[float]) -> dict[str, float]:
    """Return the lowest and highest ms of the transfers of a long chain, and of those of a short one, its peer."""
    numbers = (min(long), max(long), min(short), max(short))
    names = ("lowest", "highest", "its lowest", "its highest")
    return {name: round(1000 * number, 1) for name, number in zip(names, numbers, strict=True)}
