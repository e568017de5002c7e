"""The position of a polling source, from its source states in the chain.

A URL has one state: the validator of the content that was read last. A glob has the set of files that were read; each
block names one, and their union is the set, so a block's state stays small however many files there are. The
state of a broker's messages is defined in `fetch.mqtt`. Once rows were rejected, each state also has their count.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.chain.walk import ReadBlock, iterate
from odf_common.dataset.open_rejects import (
    NO_NUMBERS,
    POLLED,
    Numbers,
    SourceProgress,
    parse_polling_progress,
    polling_progress,
)
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, DisablePollingSource, SetPollingSource, SourceState
from odf_common.metadata.fetching import FetchStep, FetchStepContainer, FetchStepUrl
from odf_ingest.commit.position import reading

ETAG: Final = "odf/etag"
LAST_MODIFIED: Final = "odf/last-modified"
DIGEST: Final = "odf/sha3-256"  # of content that came without a validator
FILE: Final = "odf/file"
MQTT: Final = "odf/mqtt"
OF_CONTENT: Final = frozenset({ETAG, LAST_MODIFIED, DIGEST})
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A file that matched the glob and has been read.

    `name` is its path relative to the glob's fixed folder; size, modification time and digest identify its content.
    """

    name: str
    size: int = 0
    modified: int = 0
    """Modification time in nanoseconds since the epoch."""
    digest: str = ""
    """SHA3-256 of its bytes; empty if another implementation has read it."""

    @classmethod
    def parse(cls, value: str) -> Self:
        """Read a source state's value; raises `InvalidInput` if this version cannot read it."""
        with reading(value, VERSION) as plain:
            return cls(
                name=str(plain["file"]),
                size=int(plain["size"]),
                modified=int(plain["modified"]),
                digest=str(plain["digest"]),
            )

    def state(self) -> SourceState:
        """Return the state of the block that has the file: JSON, keys sorted, no spaces."""
        plain = {
            "v": VERSION,
            "file": self.name,
            "size": self.size,
            "modified": self.modified,
            "digest": self.digest,
        }
        return state_of(FILE, json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPosition:
    """The position of a polling source in the chain: its last source state, and the files that were read, by name."""

    last: SourceState | None = None
    files: Mapping[str, ReadFile] = field(default_factory=dict)
    rejected: int = 0
    """Number of rows and messages so far that became dead letters."""
    retried: Numbers = NO_NUMBERS
    """Numbers of the rejected rows and messages that have been retried and committed."""

    def progress(self, source: str) -> SourceProgress:
        """Return the numbers of rejected and retried messages and rows."""
        return polling_progress(self.rejected, self.retried)

    def source_state(self, source: str) -> SourceState:
        """Return the last state, with the count if there is one."""
        assert self.last is not None, f"{source} was never read"
        if not self.rejected:
            return replace(self.last, source_name=source)
        plain: dict[str, object] = {
            "v": VERSION,
            "kind": self.last.kind,
            "value": self.last.value,
            "rejected": self.rejected,
        }
        if self.retried.intervals:
            plain["retried"] = self.retried.intervals
        value = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return replace(state_of(POLLED, value), source_name=source)


def without_count(state: SourceState | None) -> SourceState | None:
    """Return the position in a state, without the count of rejected rows; raises `InvalidInput`."""
    if state is None or state.kind != POLLED:
        return state
    with reading(state.value, VERSION) as plain:
        parse_polling_progress(plain)  # a count that cannot be read must not begin again
        return state_of(str(plain["kind"]), str(plain["value"]))


class ReadFiles:
    """The files that were read, according to a dataset's chain; caches them, and walks only newer blocks.

    Not thread-safe.
    """

    def __init__(self, read: ReadBlock, source: str = DEFAULT_SOURCE) -> None:
        self._read = read
        self._source = source
        self._head: Multihash | None = None
        self._files: dict[str, ReadFile] = {}

    def at(self, head: Multihash) -> Mapping[str, ReadFile]:
        """Return the files by name as of a block; valid until the next call."""
        if head == self._head:
            return self._files
        newest: list[ReadFile] = []
        is_continued = False
        for name, decoded, _ in iterate(self._read, head):
            if name == self._head:
                is_continued = True
                break
            match _state_in(decoded.block.event, self._source):
                case SourceState(kind=kind, value=value) if kind == FILE:
                    newest.append(ReadFile.parse(value))
                case SourceState(kind=kind, value=value) if kind == ETAG:
                    # The reference implementation names the file in this way.
                    newest.append(ReadFile(name=value))
                case _:
                    pass
        if not is_continued:  # first call, or the dataset was reset
            self._files = {}
        self._files |= {entry.name: entry for entry in reversed(newest)}
        self._head = head
        return self._files


def state_of(kind: str, value: str) -> SourceState:
    """Return a state of a polling source; its name is that of the chain's own."""
    return SourceState(source_name=DEFAULT_SOURCE, kind=kind, value=value)


def last_content(
    state: ChainState, read: ReadBlock, step: FetchStep, source: str = DEFAULT_SOURCE
) -> SourceState | None:
    """Return the validator of what was read last from this URL or image, as declared; None if that was another one.

    They are compared only if the source was defined again since: usually one block is read.
    """
    last = without_count(state.source_states.get(source))
    if last is None or last.kind not in OF_CONTENT or content_scope(step) is None:
        return None
    is_defined_again = is_found = False
    for _, decoded, _ in iterate(read, state.head):
        event = decoded.block.event
        match event:
            case SetPollingSource(fetch=fetch) if is_found:
                return last if content_scope(fetch) == content_scope(step) else None
            case SetPollingSource() | DisablePollingSource():
                is_defined_again = True
            case _ if _state_in(event, source) is not None:
                if not is_defined_again:
                    return last
                is_found = True
    return None


def content_scope(step: FetchStep) -> str | None:
    """Return the scope within which validators are comparable: the URL, or the image without its version."""
    match step:
        case FetchStepUrl(url=url):
            return url
        case FetchStepContainer(image=image):
            name, _, tag = image.partition("@")[0].rpartition(":")
            return name if name and "/" not in tag else image.partition("@")[0]
        case _:
            return None


def _state_in(event: object, source: str) -> SourceState | None:
    """Return the state of a source that an event records."""
    if not isinstance(event, AddData) or event.new_source_state is None:
        return None
    source_state = event.new_source_state
    return without_count(source_state) if source_state.source_name == source else None
