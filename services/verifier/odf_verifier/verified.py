"""How far each dataset has been verified: the head of the last good verdict, kept in a small file of its own.

Losing it costs time only: the next verification begins at the seed.
"""

import json
import os
from pathlib import Path

from odf_common.adapters.local.faults import guarded_methods
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId


@guarded_methods
class Verified:
    """Heads of good verdicts; integrity and replay counted apart."""

    def __init__(self, folder: Path) -> None:
        """Keep the files in `folder`, made when first needed."""
        self._folder = folder

    def head(self, dataset: DatasetId, phase: str) -> Multihash | None:
        """Return the head up to which `phase` was found good, None while there is none."""
        try:
            return Multihash.parse(json.loads(self._file(dataset).read_bytes())[phase])
        except (FileNotFoundError, KeyError, ValueError, TypeError, InvalidInput):
            return None

    def remember(self, dataset: DatasetId, phases: dict[str, Multihash]) -> None:
        """Note good verdicts, in one step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(dataset)
        try:
            known = json.loads(file.read_bytes())
        except (FileNotFoundError, ValueError):
            known = {}
        known.update({phase: str(head) for phase, head in phases.items()})
        made = file.with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps(known))
        made.replace(file)

    def _file(self, dataset: DatasetId) -> Path:
        return self._folder / f"{dataset.folder}.json"
