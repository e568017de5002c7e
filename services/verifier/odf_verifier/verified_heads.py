"""The verified part of each dataset: the head of the last good verdict, in a small file per dataset.

Losing a file only costs time: the next verification starts at the seed.
"""

import json
import os
from pathlib import Path

from odf_common.adapters.local.faults import guarded_methods
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId


@guarded_methods
class VerifiedHeads:
    """Heads of good verdicts, separately for each phase."""

    def __init__(self, folder: Path) -> None:
        """Store the files in `folder`, which is created on first use."""
        self._folder = folder

    def head(self, dataset: DatasetId, phase: str) -> Multihash | None:
        """Return the head up to which `phase` had a good verdict, None if there is none."""
        try:
            return Multihash.parse(self._read_known(dataset)[phase])
        except (KeyError, TypeError, InvalidInput):
            return None

    def remember(self, dataset: DatasetId, phases: dict[str, Multihash]) -> None:
        """Store good verdicts, in one step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(dataset)
        heads = {**self._read_known(dataset), **{phase: str(head) for phase, head in phases.items()}}
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(heads))
        temporary.replace(file)

    def _read_known(self, dataset: DatasetId) -> dict[str, str]:
        """Return the content of a dataset's file; empty if there is none, or it is corrupt."""
        try:
            heads = json.loads(self._file(dataset).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return heads if isinstance(heads, dict) else {}

    def _file(self, dataset: DatasetId) -> Path:
        return self._folder / f"{dataset.folder}.json"
