"""NEXMark's stream of persons, auctions and bids, as blocks of three inputs.

Of fifty events one is a new person, three are auctions, the others bids; half of the bids go to one auction, and most
sellers and bidders are new. Event times are slightly out of order, watermarks never later than events to come. The
stream is determined by its seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from odf_testing.engine import Block

START: Final = 1_700_000_000_000  # ms since the epoch
_TURN: Final = 50
_AUCTIONS: Final = 3  # of a turn's events; the first is a person
_LATE: Final = 60_000  # ms by which a late bid is delayed
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Seattle",
    "Cheyenne",
)
_FIRST: Final = (
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
)
_LAST: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Blocks by input, and the late bids among them."""

    blocks: Mapping[str, list[Block]]
    late: list[tuple[object, ...]]


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Events in the order of arrival."""

    source: Random
    gap: int
    jitter: int
    persons: int = 0
    auctions: int = 0
    rows: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)

    def write(self, number: int) -> None:
        """Append the event with a number to its input."""
        time = START + number * self.gap + self.source.randrange(self.jitter)
        place = number % _TURN
        if place == 0:
            self._person(time)
        elif place <= _AUCTIONS:
            self._auction(time)
        else:
            self._bid(time)

    def _person(self, time: int) -> None:
        choose = self.source.choice
        name = f"{choose(_FIRST)} {choose(_LAST)}"
        card = " ".join(f"{self.source.randrange(10_000):04}" for _ in range(4))
        row = (
            0,
            time,
            self.persons,
            name,
            f"{name[:3]}@example.org",
            card,
            choose(_CITIES),
            choose(_STATES),
            "",
        )
        self.rows["persons"].append(row)
        self.persons += 1

    def _auction(self, time: int) -> None:
        price, expires = self._price(), time + self.source.randrange(1, 20_000)
        seller, category = self._someone(), 10 + self.source.randrange(5)
        what = (self.auctions, f"item {self.auctions}", "as new", price, price + self._price(), expires)
        self.rows["auctions"].append((0, time, *what, seller, category, ""))
        self.auctions += 1

    def _bid(self, time: int) -> None:
        newest = self.auctions - 1
        is_hot = self.source.random() < 0.5
        auction = newest // 100 * 100 if is_hot else self.source.randrange(max(0, newest - 100), newest + 1)
        channel = self.source.choice(_CHANNELS)
        url, extra = f"https://example.org/{channel}/{auction}", "x" * self.source.randrange(8)
        self.rows["bids"].append((0, time, auction, self._someone(), self._price(), channel, url, extra))

    def _someone(self) -> int:
        newest = self.persons - 1
        if self.source.random() < 0.75:
            return newest // 10 * 10
        return self.source.randrange(max(0, newest - 1000), newest + 1)

    def _price(self) -> int:
        return round(10 ** (self.source.random() * 6) * 100)


def nexmark(
    events: int, *, seed: int, blocks: int, gap: int = 20, jitter: int = 500, late: int = 0
) -> Stream:
    """Return a stream of this number of events, `gap` ms apart, each at most `jitter` ms behind, cut into blocks.

    `late` more bids come a minute after their time. A last block without records closes all windows.
    """
    source = Random(seed)
    writer = _Writer(source=source, gap=gap, jitter=jitter)
    made: dict[str, list[Block]] = {"persons": [], "auctions": [], "bids": []}
    tardy: list[tuple[object, ...]] = []
    for number in range(blocks):
        writer.rows = {name: [] for name in made}
        until = events * (number + 1) // blocks
        for event in range(events * number // blocks, until):
            writer.write(event)
        if number and len(tardy) < late:
            tardy.append((0, START + until * gap - _LATE, *writer.rows["bids"][-1][2:]))
            writer.rows["bids"].insert(source.randrange(len(writer.rows["bids"])), tardy[-1])
        for name, rows in writer.rows.items():
            made[name].append(Block(rows=rows, watermark=START + until * gap))
    for each in made.values():
        each.append(Block(watermark=START + events * gap + 10 * _LATE))
    return Stream(blocks=made, late=tardy)
