"""The result of a verification: problems, with the kind of damage, the block and the object, and counts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_common.metadata.manifest_contents import MetadataBlock


class Damage(StrEnum):
    """Kinds of damage; the values are part of the command's JSON output."""

    HEAD_UNREADABLE = "head-unreadable"
    BLOCK_MISSING = "block-missing"
    BLOCK_HASH_MISMATCH = "block-hash-mismatch"
    BLOCK_UNREADABLE = "block-unreadable"
    RULE_VIOLATED = "chain-rule-violated"
    OBJECT_MISSING = "object-missing"
    SIZE_MISMATCH = "size-mismatch"
    PHYSICAL_HASH_MISMATCH = "physical-hash-mismatch"
    LOGICAL_HASH_MISMATCH = "logical-hash-mismatch"
    OFFSETS_MISMATCH = "offsets-mismatch"
    SCHEMA_MISMATCH = "schema-mismatch"
    OPERATION_INVALID = "operation-invalid"
    CORRECTION_INCOMPLETE = "correction-incomplete"
    SYSTEM_COLUMN_NULL = "system-column-null"
    TIME_OUT_OF_RANGE = "time-out-of-range"
    SYSTEM_TIME_MISMATCH = "system-time-mismatch"
    CHECKPOINT_HASH_MISMATCH = "checkpoint-hash-mismatch"
    SIGNATURE_INVALID = "signature-invalid"
    INPUT_MISSING = "input-missing"
    INPUT_NOT_ON_NODE = "input-not-on-node"
    INPUT_DIVERGED = "input-diverged"
    REPLAY_MISMATCH = "replay-mismatch"
    REPLAY_REFUSED = "replay-refused"
    REPLAY_FAILED = "replay-failed"
    RESULTS_CHANGED = "results-changed"
    ENGINE_NOT_AVAILABLE = "engine-not-available"
    DATA_DROPPED = "data-dropped"
    INPUT_DROPPED = "input-dropped"


# These prevent a complete verification, but are not damage.
UNDECIDED: Final = frozenset(
    {
        Damage.ENGINE_NOT_AVAILABLE,
        Damage.REPLAY_REFUSED,
        Damage.REPLAY_FAILED,
        Damage.RESULTS_CHANGED,
        Damage.DATA_DROPPED,
        Damage.INPUT_DROPPED,
        Damage.INPUT_NOT_ON_NODE,
    }
)

NOT_CHECKED: Final = frozenset(
    {Damage.RESULTS_CHANGED, Damage.REPLAY_REFUSED, Damage.REPLAY_FAILED, Damage.INPUT_NOT_ON_NODE}
)
"""Those of which nothing that is installed or pulled can decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A difference from what the chain declares; `object` is the hash of the damaged object, if there is one."""

    kind: Damage
    block: Multihash | None = None
    sequence_number: int | None = None
    object: Multihash | None = None
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Tally:
    """The checked objects so far; sizes in bytes."""

    blocks: int = 0
    bytes: int = 0
    transforms: int = 0


def block_problem(
    name: Multihash, block: MetadataBlock, kind: Damage, text: str, damaged: Multihash | None = None
) -> Problem:
    """Return a problem with a block, or with an object that it declares."""
    return Problem(kind=kind, block=name, sequence_number=block.sequence_number, object=damaged, text=text)
