"""A block of the metadata chain (spec: MetadataBlock)."""

from dataclasses import dataclass

from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import MetadataEvent
from odf_common.metadata.scalars import Timestamp, UInt64


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBlock:
    """One link of the chain."""

    system_time: Timestamp
    prev_block_hash: Multihash | None = None
    sequence_number: UInt64
    event: MetadataEvent
