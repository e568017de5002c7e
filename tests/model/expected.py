"""The expected content of a dataset: its chain is read block by block, and each has to append the result of its input.

The input of a block follows from the position and the receipts that it adds. So nothing is committed that was not sent,
nothing twice, nothing in part, and nothing is skipped except by a command.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from tests.model.records import SOURCES, Row, appended, rows_of

from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData

Letter = tuple[str, int]  # the id of a topic, and an offset


@dataclass(frozen=True)
class Position:
    """How far a source has been read: a topic by its id, the next offset, and keys of files."""

    topic_id: str | None = None
    next: int = 0
    receipts: tuple[str, ...] = ()
    rejected: int = 0

    @classmethod
    def parse(cls, value: str) -> "Position":
        """Read a source state."""
        plain = json.loads(value)
        receipts, rejected = tuple(plain.get("receipts", ())), plain.get("rejected", 0)
        for topic in plain["topics"].values():
            return cls(topic["id"], topic["next"].get("0", 0), receipts, rejected)
        return cls(receipts=receipts, rejected=rejected)


@dataclass(frozen=True)
class Block:
    """The parts of a block that are checked here."""

    name: Multihash
    event: object
    rows: tuple[Row, ...] = ()
    first: int = 0
    """The offset of the first row."""


@dataclass(frozen=True)
class Content:
    """The content of a dataset at a block of its chain."""

    rows: tuple[Row, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)

    @property
    def files(self) -> frozenset[str]:
        """Return the keys of the files in it."""
        return frozenset(key for one in self.positions.values() for key in one.receipts)

    def position(self, source: str) -> Position:
        """Return how far a source has been read."""
        return self.positions.get(source, Position())


@dataclass(frozen=True)
class File:
    """A file that was pushed."""

    source: str
    value: bytes


@dataclass(frozen=True)
class Move:
    """A command to continue at another position: in which topic, from where, and where the topic ended then."""

    source: str
    topic_id: str | None
    """None for a topic that is gone: the command makes it again."""
    start: str
    end: int

    def leads(self, before: Position, after: Position) -> bool:
        """Return whether this command has moved a source."""
        wanted = {
            "earliest": after.next == 0,
            "latest": after.next >= self.end,
            "keep": after.next == before.next,
        }
        is_else_same = replace(after, topic_id=before.topic_id, next=before.next) == before
        is_there = self.topic_id in {None, after.topic_id}
        return is_there and wanted[self.start] and is_else_same


@dataclass
class Expected:
    """What was sent to a dataset, and its content at each known block."""

    topics: Mapping[str, str]  # by source
    files: dict[str, File] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)  # keys of files
    resets: int = 0  # that were requested
    moves: list[Move] = field(default_factory=list)
    contents: dict[Multihash, Content] = field(default_factory=dict)
    heads: list[Multihash] = field(default_factory=list)  # each once, as they were first seen

    def content(
        self, chain: Iterable[Block], log: Callable[[str], list[bytes]], letters: set[Letter]
    ) -> Content:
        """Return the dataset's content at the first of these blocks, newest first; every new one is checked."""
        new: list[Block] = []
        known = Content()
        for block in chain:
            if block.name in self.contents:
                known = self.contents[block.name]
                break
            new.append(block)

        def after(before: Content, block: Block) -> Content:
            content = self.contents[block.name] = self._after(before, block, log, letters)
            return content

        return reduce(after, reversed(new), known)

    def _after(
        self, before: Content, block: Block, log: Callable[[str], list[bytes]], letters: set[Letter]
    ) -> Content:
        event = block.event
        assert not block.rows or block.first == len(before.rows), "offsets are not dense"
        if not isinstance(event, AddData):
            return before
        assert event.new_source_state is not None
        source, position = event.new_source_state.source_name, Position.parse(event.new_source_state.value)
        past = before.position(source)
        content = Content(rows=(*before.rows, *block.rows), positions={**before.positions, source: position})
        if not block.rows and any(one.leads(past, position) for one in self.moves if one.source == source):
            return content
        how = SOURCES[source]
        new: list[Row] | None
        if position.receipts != past.receipts:
            new = self._file(source, past, position)
        else:
            new = self._messages(past, position, log, letters, is_whole=how.merge == "Snapshot")
        wanted = () if new is None else tuple(appended(how, before.rows, new))
        assert block.rows == wanted, f"{source} has appended {block.rows} where {new} makes {wanted}"
        return content

    def _file(self, source: str, past: Position, now: Position) -> list[Row]:
        """Return the rows of the one file that has moved the source to its position."""
        *others, key = now.receipts
        assert replace(now, receipts=tuple(others)) == past, "a file has moved more than its receipt"
        assert key not in others, "a file was taken twice"
        assert self.files[key].source == source
        rows = rows_of(self.files[key].value)
        assert rows is not None
        return rows

    def _messages(
        self,
        past: Position,
        now: Position,
        log: Callable[[str], list[bytes]],
        letters: set[Letter],
        *,
        is_whole: bool,
    ) -> list[Row] | None:
        """Return the rows of the messages that have moved the source to its position; None if none of them is a record.

        If `is_whole`, each is a separate batch.
        """
        assert now.topic_id is not None
        assert past.topic_id in {None, now.topic_id}, "a topic is taken for another one"
        assert now.next > past.next, "a block says nothing new"
        read = [rows_of(value) for value in log(now.topic_id)[past.next : now.next]]
        assert not is_whole or len(read) == 1, "two states are taken for one"
        assert len(read) == now.next - past.next, "more is read than was published"
        bad = {past.next + place for place, rows in enumerate(read) if rows is None}
        assert now.rejected - past.rejected == len(bad), "rejected messages are miscounted"
        assert {(now.topic_id, one) for one in bad} <= letters, "a rejected message has no dead letter"
        good = [rows for rows in read if rows is not None]
        return [row for rows in good for row in rows] if good else None
