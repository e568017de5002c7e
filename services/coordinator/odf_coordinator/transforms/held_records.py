"""Records that a derivative's checkpoint keeps for results that depend on the watermark, as counted by the engine.

The checkpoint is the engine's own, so the count is a note of this node. It names the checkpoint it belongs to: after a
reset, or for a copy, nothing is known.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress
from odf_common.ports.store import BlobStore

log = structlog.stdlib.get_logger(__name__)

NOTE: Final = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecords:
    """How many records a checkpoint keeps, and the earliest watermark that releases one; None if unknown."""

    records: int
    until: Timestamp | None


NONE_HELD: Final = HeldRecords(records=0, until=None)


def note_held(blobs: BlobStore, state: ChainState, report: EngineProgress) -> None:
    """Record what the last checkpoint of a chain keeps; a failure to write the note is logged."""
    plain = {"checkpoint": _checkpoint_of(state), "records": report.held, "until": report.held_until}
    text = json.dumps(plain) if report.held else None
    try:
        if text != blobs.note(state.dataset_id, NOTE):
            blobs.set_note(state.dataset_id, NOTE, text)
    except OdfError as error:
        log.warning("cannot record held records", dataset_id=str(state.dataset_id), why=str(error))


def held_records(blobs: BlobStore, state: ChainState) -> HeldRecords:
    """Return what the last checkpoint of a chain keeps, as far as this node has computed it."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        plain = json.loads(blobs.note(state.dataset_id, NOTE) or "{}")
        if plain.get("checkpoint") == _checkpoint_of(state):
            until = plain["until"]
            return HeldRecords(
                records=int(plain["records"]), until=None if until is None else Timestamp.from_ms(int(until))
            )
    return NONE_HELD


def _checkpoint_of(state: ChainState) -> str | None:
    return None if state.checkpoint is None else str(state.checkpoint.physical_hash)
