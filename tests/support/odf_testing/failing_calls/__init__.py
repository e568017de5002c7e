"""Fails one system call of a service. A folder for `PYTHONPATH`: Python imports its `sitecustomize` at start."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_testing.failing_calls.handler import FAILED, FOLDER

MODULES: Final = {
    "ingest": "odf_ingest",
    "coordinator": "odf_coordinator",
    "engine-spark": "odf_engine_spark",
    "verifier": "odf_verifier",
    "sync": "odf_sync",
    "views": "odf_coordinator.views",
}
ERRORS: Final = ("ENOSPC", "EIO", "EMFILE", "ENOMEM", "EAGAIN")


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls since an order that it concerned, each with its file; the one that failed, if one has."""

    made: tuple[str, ...]
    failed: str | None


class FailingCalls:
    """Orders failures of the services of one home."""

    def __init__(self, home: Path) -> None:
        """Create the folder that concerns the services when they start."""
        self._folder = home / FOLDER
        self._folder.mkdir()

    def environment(self) -> dict[str, str]:
        """Return the variables that the node needs."""
        return {"PYTHONPATH": str(Path(__file__).parent)}

    def order(self, service: str, error: str, after: int) -> None:
        """Fail the call of the service that follows `after` others, of those that have this error."""
        file = self._file(service)
        file.with_name(f"{file.name}.calls").unlink(missing_ok=True)
        pending = file.with_name(f"{file.name}.new")
        pending.write_text(json.dumps({"errno": error, "after": after}))
        pending.rename(file)

    def end(self, service: str) -> Calls:
        """Withdraw the order, and return what happened since."""
        file = self._file(service)
        file.unlink(missing_ok=True)
        calls = file.with_name(f"{file.name}.calls")
        lines = calls.read_text().splitlines() if calls.exists() else []
        failed = next((line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)), None)
        return Calls(tuple(lines), failed)

    def _file(self, service: str) -> Path:
        return self._folder / MODULES[service]
