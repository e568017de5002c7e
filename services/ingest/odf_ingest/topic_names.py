"""Topics that a source reads in place of its own, and topics of a cluster that no source may read."""

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import ClassVar, Final, Self

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp

MAX_TOPICS: Final = 100  # names and patterns of one source
NONE: Final = "none"
_NAME: Final = re.compile(r"[A-Za-z0-9._*-]{1,249}", re.ASCII)
_INTERNAL: Final = "__"  # how the names of Kafka's own topics begin
_NODE: Final = "odf."  # how the names of a node's topics begin, after its prefix
_CLAIM: Final = "odf.node.v1"  # the topic in which a node claims its prefix


class TopicNames(tuple[str, ...]):
    """Names of topics, and patterns in which `*` stands for any characters; none: the source's own topic."""

    __slots__ = ()
    expected: ClassVar[str] = "names of topics separated by commas, * for any characters, or none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read names; raises `ValueError`."""
        names = [] if text == NONE else [name.strip() for name in text.split(",")]
        if len(names) > MAX_TOPICS or not all(_NAME.fullmatch(name) for name in names):
            raise ValueError(text)
        return cls(dict.fromkeys(names))

    def __str__(self) -> str:
        """Return the names as `parse` reads them."""
        return ",".join(self) or NONE

    @property
    def exact(self) -> tuple[str, ...]:
        """Return the names without patterns."""
        return tuple(name for name in self if "*" not in name)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns."""
        return tuple(name for name in self if "*" in name)

    def among(self, topics: Iterable[str], reserved: "ReservedTopics") -> tuple[str, ...]:
        """Return the exact names, and those of `topics` that match a pattern and are not reserved."""
        matching = (
            name
            for name in topics
            if any(fnmatchcase(name, pattern) for pattern in self.patterns) and reserved.why(name) is None
        )
        return tuple(sorted({*self.exact, *matching}))


class TopicStart(str):
    """The start of reading of a topic: `earliest`, `latest`, or the first message from a time (RFC 3339) on."""

    __slots__ = ()
    expected: ClassVar[str] = "earliest, latest, or a time such as 2026-03-04T00:00:00Z"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a start; raises `ValueError`."""
        if text in {EARLIEST, LATEST}:
            return cls(text)
        try:
            return cls(Timestamp.parse(text))
        except InvalidInput as error:
            raise ValueError(text) from error

    @property
    def ms(self) -> int | None:
        """Return the time in ms since the epoch; None if it is not a time."""
        return None if self in {EARLIEST, LATEST} else Timestamp.parse(self).ms


EARLIEST: Final = TopicStart("earliest")
LATEST: Final = TopicStart("latest")


class ReservedTopics:
    """The topics of a cluster that sources cannot read: Kafka's own, and those of nodes."""

    def __init__(self, own_prefix: str, topics: Collection[str] = ()) -> None:
        """Reserve the topics of this node, and of all nodes that have claimed a prefix among `topics`."""
        self._own = own_prefix
        self._others = {name.removesuffix(_CLAIM) for name in topics if name.endswith(_CLAIM)} - {own_prefix}

    def why(self, name: str) -> str | None:
        """Return the reason why a topic cannot be read; None if it can."""
        if name.startswith(_INTERNAL):
            return "is an internal topic of Kafka"
        if self.is_own(name):
            return "is a topic of this node"
        if any(name.startswith(prefix + _NODE) for prefix in self._others):
            return "is a topic of another node"
        return None

    def is_own(self, name: str) -> bool:
        """Return whether a topic belongs to this node."""
        return name.startswith(self._own + _NODE)
