"""Records that a derivative's checkpoint keeps for results that depend on the watermark, as counted by the engine.

The checkpoint is the engine's own, so the count is a file of this node, in the dataset's folder of indexes. It names
the checkpoint it belongs to: after a reset, or for a copy, nothing is known. It is not synced to the disk, since it is
written at each step and the next step writes it again: after a power failure it may be old or empty, which is unknown.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress
from odf_common.ports.store import BlobStore

log = structlog.stdlib.get_logger(__name__)

FILE: Final = "held.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecords:
    """The number of records in a checkpoint, the earliest watermark that releases one, and the steps that keep them."""

    records: int
    until: Timestamp | None
    by: str = ""


NONE_HELD: Final = HeldRecords(records=0, until=None)


def record_held(blobs: BlobStore, state: ChainState, report: EngineProgress) -> None:
    """Record what the last checkpoint of a chain keeps; a failure to write the file is logged."""
    file = _file(blobs, state)
    plain = {
        "checkpoint": _checkpoint_of(state),
        "records": report.held,
        "until": report.held_until,
        "by": report.held_by,
    }
    try:
        if not report.held:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(exist_ok=True)  # without its parents: the dataset may be deleted
        pending = file.with_suffix(".pending")
        pending.write_text(json.dumps(plain))
        pending.replace(file)
    except OSError as error:
        log.warning("cannot record held records", dataset_id=str(state.dataset_id), why=str(error))


def held_records(blobs: BlobStore, state: ChainState) -> HeldRecords:
    """Return the records that the last checkpoint of a chain keeps, as far as this node has computed it."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        plain = json.loads(_file(blobs, state).read_text())
        if plain.get("checkpoint") == _checkpoint_of(state):
            until = plain["until"]
            return HeldRecords(
                records=int(plain["records"]),
                until=None if until is None else Timestamp.from_ms(int(until)),
                by=str(plain.get("by", "")),  # an earlier release did not write it
            )
    return NONE_HELD


def _file(blobs: BlobStore, state: ChainState) -> Path:
    return blobs.index_folder(state.dataset_id) / FILE


def _checkpoint_of(state: ChainState) -> str | None:
    return None if state.checkpoint is None else str(state.checkpoint.physical_hash)
