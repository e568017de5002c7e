"""Names of the system columns (spec: DatasetVocabulary)."""

from dataclasses import dataclass, fields

from odf_common.metadata.events import SetVocab


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVocabulary:
    """The four names, with defaults for missing ones."""

    offset_column: str = "offset"
    operation_type_column: str = "op"
    system_time_column: str = "system_time"
    event_time_column: str = "event_time"


def vocabulary_of(event: SetVocab | None) -> DatasetVocabulary:
    """Return the names that `event` sets, with defaults for missing ones."""
    if event is None:
        return DatasetVocabulary()
    given = {f.name: getattr(event, f.name) for f in fields(event)}
    return DatasetVocabulary(**{name: value for name, value in given.items() if value is not None})
