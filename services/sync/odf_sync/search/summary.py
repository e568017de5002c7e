"""The summary of a dataset in lists of datasets, and its JSON; summaries from other nodes are truncated and checked."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Self

from odf_common.chain.state import ChainState
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import parse_alias
from odf_common.metadata.events import DatasetKind, SetDataSchema, SetInfo

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
    """Of the chain that the rest was read from; empty if not all of it was."""
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
