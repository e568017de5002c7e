"""The number of records that a derivative's checkpoint holds until the watermark advances, as counted by the engine.

Only the engine can read the checkpoint, so this node stores the count in a file, in the dataset's folder of indexes.
The file names the checkpoint that it belongs to: after a reset, and for a copy, the count is unknown. The file is not
synced to disk, because each step writes it again: after a power failure it may be lost, and the count is unknown too.
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
    """The number of held records, the earliest watermark that releases one, and the query's steps that hold them."""

    records: int
    until: Timestamp | None
    by: str = ""


NONE_HELD: Final = HeldRecords(records=0, until=None)


def record_held(blobs: BlobStore, state: ChainState, report: EngineProgress) -> None:
    """Store the number of records that the last checkpoint of a chain holds. A failure to write is only logged."""
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
    """Return the records that the last checkpoint of a chain holds; `NONE_HELD` if this node did not compute it."""
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
