"""Files in the home that list the parts of the node that a service cannot reach: `outages/SERVICE.json`.

Services that share a home may be in different networks, so each service writes its own file. The file exists only
during an outage and is rewritten by each check; an outdated file belongs to a service that has ended.
"""

import json
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable

FOLDER: Final = "outages"
STALE_SECONDS: Final = 20.0  # several checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The fact that one service cannot reach one part of the node."""

    part: str
    seen_by: str
    """Name of the service that cannot reach the part."""
    since: str
    """Start of the outage: RFC 3339, in UTC, whole seconds."""
    why: str


class OutageFile:
    """The file with the outages that one instance of a service sees."""

    def __init__(self, home: Path, instance: str) -> None:
        """Use the file of `instance`, which is unique among the services of the home."""
        self._home = home
        self._file = home / FOLDER / f"{instance}.json"

    def seen_by(self, services: Container[str]) -> Mapping[str, str]:
        """Return the parts that any of these services cannot reach, and the reason for each part."""
        return {one.part: one.why for one in read_outages(self._home) if one.seen_by in services}

    def write(self, outages: Sequence[Outage]) -> None:
        """Replace the outages in the file, or remove the file if there are none.

        The file is not fsynced. If it cannot be written, for example because the disk is full, this is only logged.
        """
        try:
            if not outages:
                self._file.unlink(missing_ok=True)
                return
            durable.make_folder(self._file.parent)
            pending = self._file.with_suffix(".new")
            pending.write_text(json.dumps([asdict(one) for one in outages]))
            pending.replace(self._file)
        except OSError as error:
            import structlog  # noqa: PLC0415 commands read these files, and do not log

            structlog.stdlib.get_logger(__name__).warning("cannot record outages", why=str(error))


def read_outages(home: Path) -> Sequence[Outage]:
    """Return the current outages that the services of a home report; unreadable and outdated files are skipped."""
    return tuple(outage for file in _files(home) for outage in _outages_in(file))


def _files(home: Path) -> Iterable[Path]:
    try:
        return sorted((home / FOLDER).glob("*.json"))
    except OSError:
        return ()


def _outages_in(file: Path) -> Iterator[Outage]:
    try:
        if time.time() - file.stat().st_mtime < STALE_SECONDS:
            yield from [Outage(**one) for one in json.loads(file.read_bytes())]
    except (OSError, ValueError, TypeError):
        return
