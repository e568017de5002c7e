"""The content of a manifest that defines a dataset (spec: DatasetSnapshot)."""

from dataclasses import dataclass

from odf_common.metadata.events import DatasetKind, KnownEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSnapshot:
    """Name, kind and first events of a dataset; `name` is an alias as written."""

    name: str
    kind: DatasetKind
    metadata: tuple[KnownEvent, ...]
