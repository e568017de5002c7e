"""Settings for columns that are read from a message's key, headers and timestamp, and for the format of its value."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Self

from odf_common.errors import InvalidInput

NONE: Final = "none"
KEY_SCHEMA: Final = "__key_schema_id"
VALUE_SCHEMA: Final = "__value_schema_id"
"""Headers for the schema ids of a message's key and value, used by serializers that do not prepend the ids."""


class KeyFormat(StrEnum):
    """The format of a message's key."""

    TEXT = "text"  # the value of one column
    JSON = "json"  # an object with the values of columns
    REGISTRY = "registry"  # a record whose schema is in the source's schema registry


class MessageFormat(StrEnum):
    """The format of a message's value."""

    SOURCE = "source"  # in the format of the source's read step
    ARROW = "arrow"  # Arrow IPC, for which the specification has no read step


class Envelope(StrEnum):
    """The envelope around a record in a message's value."""

    NONE = "none"
    DEBEZIUM = "debezium"  # op, before, after and source of a change


class ColumnNames(tuple[str, ...]):
    """Names of columns."""

    __slots__ = ()
    expected: ClassVar[str] = "names of columns separated by commas, or none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read names; raises `ValueError`."""
        names = [] if text == NONE else [name.strip() for name in text.split(",")]
        if not all(names):
            raise ValueError(text)
        return cls(names)

    def __str__(self) -> str:
        """Return the names as `parse` reads them."""
        return ",".join(self) or NONE


class HeaderColumns(tuple[tuple[str, str], ...]):
    """Names of headers, each with the name of its column."""

    __slots__ = ()
    expected: ClassVar[str] = "pairs such as trace-id:trace separated by commas, or none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read pairs; raises `ValueError`."""
        if text == NONE:
            return cls()
        pairs = [part.strip().rpartition(":") for part in text.split(",")]
        if not all(header and column for header, _, column in pairs):
            raise ValueError(text)
        return cls((header, column) for header, _, column in pairs)

    def __str__(self) -> str:
        """Return the pairs as `parse` reads them."""
        return ",".join(f"{header}:{column}" for header, column in self) or NONE


NO_NAMES: Final = ColumnNames()
NO_HEADERS: Final = HeaderColumns()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageColumns:
    """The columns that are read from other parts of a message than its value; `InvalidInput` if one has two origins."""

    keys: ColumnNames = NO_NAMES
    key_format: KeyFormat = KeyFormat.TEXT
    headers: HeaderColumns = NO_HEADERS
    timestamp: str = ""
    """The name of the column for the message's timestamp; empty: there is none."""
    has_schemas: bool = False
    """Whether messages contain ids of schemas in a registry."""
    value_format: MessageFormat = MessageFormat.SOURCE
    refuses_finer_times: bool = False
    """Whether a time with a finer fraction than its column is refused; otherwise it is truncated."""
    completes_retractions: bool = False
    """Whether a -R or -C of a ChangelogStream needs only its key; other values are taken from the current record."""
    envelope: Envelope = Envelope.NONE

    def __post_init__(self) -> None:
        names = self.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            text = "has two origins among keyColumns, headerColumns and timestampColumn"
            raise InvalidInput(where=f"column {twice[0]}", text=text)
        if self.key_format is KeyFormat.TEXT and len(self.keys) > 1:
            text = "a key of several columns is an object: set keyFormat=json"
            raise InvalidInput(where="keyColumns", text=text)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all these columns."""
        timestamp = (self.timestamp,) if self.timestamp else ()
        return (*self.keys, *(column for _, column in self.headers), *timestamp)

    @property
    def read_headers(self) -> tuple[str, ...]:
        """Return the names of the headers that are read, for columns and for schema ids."""
        schemas = (VALUE_SCHEMA, *((KEY_SCHEMA,) if self.key_format is KeyFormat.REGISTRY else ()))
        return tuple(
            dict.fromkeys((*(name for name, _ in self.headers), *(schemas if self.has_schemas else ())))
        )


NO_COLUMNS: Final = MessageColumns()
