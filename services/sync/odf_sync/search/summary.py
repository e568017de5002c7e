"""Summaries of datasets, and the pages in which a node lists them: `GET /datasets?after=NAME` (ADR 0060).

Summaries and pages from other nodes are truncated and checked.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Self

from odf_common.chain.state import ChainState
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import parse_alias
from odf_common.metadata.events import DatasetKind, SetDataSchema, SetInfo

PATH: Final = "datasets"
AFTER: Final = "after"
PAGE_DATASETS: Final = 100
PAGE_BYTES: Final = 1024 * 1024  # after which a page ends; one dataset has less than that
LIST_LIMIT: Final = 64 * 1024 * 1024  # bytes of all pages of another node
DESCRIPTION_LENGTH: Final = 1000  # characters
WORD_LENGTH: Final = 100  # characters of a keyword, and of a column's name
KEYWORDS, COLUMNS = 50, 500  # of one dataset
KINDS: Final = {DatasetKind.Root: "root", DatasetKind.Derivative: "derivative"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """A dataset in a list of datasets."""

    name: str
    """`[account/]dataset`, in its repository."""
    id: str = ""
    """Empty if not known."""
    kind: str = ""
    head: str = ""
    """The head of the chain from which the rest was read; empty if not all of it was."""
    description: str = ""
    keywords: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the name is one of a dataset."""
        parse_alias(self.name)

    def json(self) -> dict[str, object]:
        """Return the JSON object."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> Self:
        """Return a summary from JSON that is not trusted; raises `InvalidInput`."""
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise InvalidInput(text="not a listed dataset")
        return cls(
            name=value["name"],
            id=_text(value.get("id"), WORD_LENGTH),
            kind=_text(value.get("kind"), WORD_LENGTH),
            head=_text(value.get("head"), WORD_LENGTH),
            description=_text(value.get("description"), DESCRIPTION_LENGTH),
            keywords=_words(value.get("keywords"), KEYWORDS),
            columns=_words(value.get("columns"), COLUMNS),
        )


def summary_of(alias: str, state: ChainState) -> DatasetSummary:
    """Return the summary of a dataset of this node."""
    return DatasetSummary(
        name=alias,
        id=str(state.dataset_id),
        kind=KINDS[state.kind],
        head=str(state.head),
        description=description_of(state.info),
        keywords=keywords_of(state.info),
        columns=column_names(state.schema),
    )


def description_of(info: SetInfo | None) -> str:
    """Return the description as the owner set it, cut to the limit."""
    return _text(None if info is None else info.description, DESCRIPTION_LENGTH)


def keywords_of(info: SetInfo | None) -> tuple[str, ...]:
    """Return the keywords as the owner set them, cut to the limits."""
    return _words(list((info and info.keywords) or ()), KEYWORDS)


def column_names(schema: SetDataSchema | None) -> tuple[str, ...]:
    """Return the names of the columns, none if the schema cannot be read."""
    if schema is None:
        return ()
    try:
        return _words(schema_of_event(schema).names, COLUMNS)
    except InvalidInput:
        return ()


def _text(value: object, length: int) -> str:
    """Return a string of at most `length` characters, without those that control a terminal; empty for other values."""
    text = value[:length] if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else " " for character in text)


def _words(value: object, most: int) -> tuple[str, ...]:
    words: Iterable[object] = value[:most] if isinstance(value, list) else ()
    return tuple(_text(word, WORD_LENGTH) for word in words if isinstance(word, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some datasets, by lower-case name."""

    datasets: tuple[DatasetSummary, ...]
    next: str = ""
    """Name after which the next page begins; empty on the last one."""

    def to_bytes(self) -> bytes:
        """Return the document."""
        document = {"datasets": [dataset.json() for dataset in self.datasets], "next": self.next or None}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def parse_page(raw: bytes, where: str) -> Page:
    """Return a page of another node; raises `InvalidInput`."""
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text="not JSON", where=where) from error
    match plain:
        case {"datasets": list(datasets), **rest}:
            after = rest.get("next")
            summaries = tuple(map(DatasetSummary.of_json, datasets))
            return Page(datasets=summaries, next=after if isinstance(after, str) else "")
        case _:
            raise InvalidInput(text="not a list of datasets", where=where)
