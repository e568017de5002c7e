"""The contents of manifests: a block of the chain, what defines a dataset, where a repository is (spec: Manifests)."""

from dataclasses import dataclass

from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DatasetKind, KnownEvent, MetadataEvent
from odf_common.metadata.scalars import Timestamp, UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBlock:
    """One link of the chain."""

    system_time: Timestamp
    prev_block_hash: Multihash | None = None
    sequence_number: UInt64
    event: MetadataEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSnapshot:
    """Name, kind and first events of a dataset; `name` is an alias as written."""

    name: str
    kind: DatasetKind
    metadata: tuple[KnownEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The URL of a repository; its datasets are below it."""

    url: str
