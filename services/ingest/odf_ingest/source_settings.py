"""This node's policies for push sources, which manifests cannot express.

The chain's metadata has no field for them, and they affect no hash: two nodes may treat bad records differently. They
are stored in one note of the dataset, `sources`: a JSON object of settings by source name.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Final, Self

from odf_common.errors import InvalidInput
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore

NOTE: Final = "sources"


class BadRecords(StrEnum):
    """What to do with a message that is not a record of the source."""

    DEAD_LETTER = "dead-letter"  # reject it, commit the others
    STOP = "stop"  # stop the source before it, until a user decides


class EmptySnapshot(StrEnum):
    """What a snapshot without records means."""

    RETRACT = "retract"  # the source is empty: retract every row
    REFUSE = "refuse"  # treat it as an error of the producer


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Policies of one push source, with their defaults."""

    bad_records: BadRecords = BadRecords.DEAD_LETTER
    max_rejected_share: float = 1.0
    """The source stops at a batch of which more than this share (0–1) is rejected."""
    empty_snapshot: EmptySnapshot = EmptySnapshot.RETRACT
    max_retracted_share: float = 0.5
    """A snapshot that retracts more than this share (0–1) of the current rows is refused."""
    retraction_guard_rows: int = 100
    """Datasets of up to this many rows have no such limit."""

    def __post_init__(self) -> None:
        for name in ("max_rejected_share", "max_retracted_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(where=_key(name), text=f"expected 0 to 1, got {getattr(self, name)}")
        if self.retraction_guard_rows < 0:
            raise InvalidInput(where=_key("retraction_guard_rows"), text="expected 0 or more")

    @classmethod
    def from_plain(cls, plain: Mapping[str, object]) -> Self:
        """Build from keys such as `badRecords`; raises `InvalidInput` for an unknown key or a wrong value."""
        known = {_key(one.name): one for one in fields(cls)}
        values: dict[str, object] = {}
        for key, value in plain.items():
            if key not in known:
                text = f"unknown setting of a source; choose from {', '.join(known)}"
                raise InvalidInput(where=key, text=text)
            values[known[key].name] = _parsed(key, str(value), getattr(cls(), known[key].name))
        return cls(**values)  # type: ignore[arg-type]  # each was parsed to its default's type

    def plain(self) -> dict[str, object]:
        """Return all settings by key, as `from_plain` takes them."""
        return {_key(name): value for name, value in asdict(self).items()}

    def changed(self, changes: Mapping[str, object]) -> Self:
        """Return the settings with some of them changed; raises `InvalidInput`."""
        chosen = type(self).from_plain(changes)
        named = {one.name for one in fields(self) if _key(one.name) in changes}
        return replace(self, **{name: getattr(chosen, name) for name in named})


def load_settings(blobs: BlobStore, dataset: DatasetId, source: str) -> SourceSettings:
    """Return the settings of a source, with defaults. Raises `InvalidInput` if they are damaged."""
    return SourceSettings.from_plain(_read(blobs, dataset).get(source, {}))


def save_settings(blobs: BlobStore, dataset: DatasetId, source: str, settings: SourceSettings) -> None:
    """Store the settings of a source durably; defaults are not written."""
    usual = SourceSettings().plain()
    own = {key: value for key, value in settings.plain().items() if value != usual[key]}
    others = {name: one for name, one in _read(blobs, dataset).items() if name != source}
    sources = {**others, source: own} if own else others
    text = json.dumps(sources, indent=1, sort_keys=True) if sources else None
    blobs.set_note(dataset, NOTE, text)


def _read(blobs: BlobStore, dataset: DatasetId) -> dict[str, dict[str, object]]:
    text = blobs.note(dataset, NOTE)
    try:
        plain = {} if text is None else json.loads(text)
        return {str(name): dict(settings) for name, settings in plain.items()}
    except (ValueError, TypeError, AttributeError) as error:
        where = f"settings of the sources of {dataset}"
        raise InvalidInput(where=where, text=f"cannot be read: {error}") from error


def _parsed(key: str, text: str, default: object) -> object:
    try:
        return type(default)(text)  # type: ignore[call-arg]  # a float, an integer or a choice
    except ValueError as error:
        choices = f"one of {', '.join(type(default))}" if isinstance(default, StrEnum) else "a number"
        raise InvalidInput(where=key, text=f"expected {choices}, got {text!r}") from error


def _key(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(one.capitalize() for one in others)
