"""What a pull and a push of one new block take, and in how many round trips, on chains of any length."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from long_chains import Client, chain_in, linked_without_newest, written
from newest_file import PULLS, PUSHES, NewestFile, Peers
from odf_testing.builders import AChain
from pull_chain import served
from push_chain import served_with_coordinator
from rows import Row, Target, held_against
from transfer_peers import DELAY, delayed_by, timed

CHAINS: Final = (1_000, 100_000)
DELAYS: Final = (0.0, DELAY)  # beside peers
LONG_DELAY: Final = 0.62  # far more than the work of both ends varies
REPEATS: Final = 5
AS_FAST: Final = Target(judged="ratio", sense="≤", bound=1.5)

PULLED: Final = ("connect", "head", "pack")
PUSHED: Final = ("connect", "head", "upgrade", "exchange")
PUSHED_WITH_SLICE: Final = (*PUSHED, "connect", "object", "commit")

Seconds = Mapping[float, Sequence[float]]
"""The seconds of each transfer, by the delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Transfers of the newest block of a chain, and the home that has it."""

    seconds: Seconds
    full: Path
    chain: AChain

    def peers(self, peers: Peers) -> Iterator[tuple[str, float, Sequence[float]]]:
        """Yield the name, the delay, and the seconds of each transfer of the same file by others; removes the home."""
        dataset, older = self.chain.state.dataset_id, self.full.with_name("older")
        linked_without_newest(self.full, older, dataset, self.chain)
        files, older_files = (home / "datasets" / dataset.folder for home in (self.full, older))
        newest = NewestFile.of(files, older_files, self.full.with_name("repositories"))
        for name, transfer in peers.items():
            for delay in DELAYS:
                yield name, delay, [transfer(newest, delay) for _ in range(REPEATS)]
        shutil.rmtree(self.full.parent)


class Measure(Protocol):
    """Measures transfers of the newest block of a chain of a length, which has a slice or none."""

    def __call__(self, length: int, *, has_slice: bool) -> Measured:
        """Return what they took."""


def run() -> list[Row]:
    """Return the rows; takes twenty minutes."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        pulled, pushed = Path(folder, "pull"), Path(folder, "push")
        return [
            *_rows("pull", partial(_newest_pulled, pulled), PULLED, (*PULLED, "object"), PULLS),
            *_rows("push", partial(_newest_pushed, pushed), PUSHED, PUSHED_WITH_SLICE, PUSHES),
        ]


def _rows(
    what: str, measure: Measure, trips: Sequence[str], with_slice: Sequence[str], peers: Peers
) -> Iterator[Row]:
    """Yield the rows of a transfer whose round trips are known, without and with a slice, and beside peers."""
    short = measure(CHAINS[0], has_slice=False).seconds
    measured = measure(CHAINS[1], has_slice=False)
    long = measured.seconds
    for peer, delay, seconds in measured.peers(peers):
        yield held_against(
            f"{what} one new block of {CHAINS[1]:,}, {delay * 1000:g} ms, median of {REPEATS}",
            median(long[delay]) * 1000,
            "ms",
            peer=(f"{peer}, median of {REPEATS}", median(seconds) * 1000),
            detail=_lowest_and_highest(seconds, long[delay]),
        )
    yield held_against(
        f"{what} one new block of {CHAINS[1]:,}, {DELAY * 1000:g} ms, median of {REPEATS}",
        median(long[DELAY]) * 1000,
        "ms",
        peer=(f"one of {CHAINS[0]:,}, median of {REPEATS}", median(short[DELAY]) * 1000),
        target=AS_FAST,
        detail=_lowest_and_highest(short[DELAY], long[DELAY]),
    )
    yield _trips(f"{what} one new block of {CHAINS[1]:,}", long, trips)
    sliced = measure(CHAINS[0], has_slice=True).seconds
    yield _trips(f"{what} one new block with a slice of 1.5 MiB", sliced, with_slice)


def _newest_pulled(folder: Path, length: int, *, has_slice: bool) -> Measured:
    """Return the seconds of each pull of the newest block, each into a fresh copy of the home that lacks it."""
    name = f"{length}-{has_slice}"
    there, here = folder / name / "there", folder / name / "here"
    chain = chain_in(there, blocks=length, objects=0, is_newest_data=has_slice)
    dataset = written(there, chain)
    seconds: dict[float, list[float]] = {delay: [] for delay in (*DELAYS, LONG_DELAY)}
    for delay in sorted(REPEATS * [*seconds]):
        linked_without_newest(there, here, dataset, chain)
        client = Client(here)
        client.coordinator.states.current(dataset)
        with served(there) as port, delayed_by(port, delay) as delayed:
            seconds[delay].append(timed(partial(client.pull, delayed)))
        shutil.rmtree(here)
    return Measured(seconds=seconds, full=there, chain=chain)


def _newest_pushed(folder: Path, length: int, *, has_slice: bool) -> Measured:
    """Return the seconds of each push of the newest block, each to a fresh copy of the home that lacks it."""
    name = f"{length}-{has_slice}"
    here, there = folder / name / "here", folder / name / "there"
    chain = chain_in(here, blocks=length, objects=0, is_newest_data=has_slice)
    dataset = written(here, chain)
    client = Client(here)
    client.coordinator.states.current(dataset)
    seconds: dict[float, list[float]] = {delay: [] for delay in (*DELAYS, LONG_DELAY)}
    for delay in sorted(REPEATS * [*seconds]):
        linked_without_newest(here, there, dataset, chain)
        with served_with_coordinator(there, dataset) as port, delayed_by(port, delay) as delayed:
            seconds[delay].append(timed(partial(client.push, delayed)))
        shutil.rmtree(there)
    return Measured(seconds=seconds, full=here, chain=chain)


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
        target=Target(judged="value", sense="≤", bound=len(expected)),
        detail={"before rounding": round(trips, 2)},
    )


def _lowest_and_highest(short: Sequence[float], long: Sequence[float]) -> dict[str, float]:
    """Return the lowest and highest ms of the transfers of a long chain, and of those of a short one, its peer."""
    numbers = (min(long), max(long), min(short), max(short))
    names = ("lowest", "highest", "its lowest", "its highest")
    return {name: round(1000 * number, 1) for name, number in zip(names, numbers, strict=True)}
