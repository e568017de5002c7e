"""Names as files: one JSON object each, taken by put-if-absent, read again only when they change."""

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from odf_common.adapters.local import durable, layout
from odf_common.errors import AlreadyExists, InvalidInput, NotFound, VerificationFailed
from odf_common.identity.did import DatasetId
from odf_common.ports.store import Catalog, CatalogEntry

log = logging.getLogger(__name__)

_SETTLED: Final = (
    100_000_000  # ns; clocks of file systems are coarse: a younger folder may still change unseen
)


@dataclass(eq=False, kw_only=True)
class CorruptName(VerificationFailed):
    """A catalog entry cannot be read."""

    file: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the folder held when it looked like `stamp`; never trusted if that is None."""

    stamp: int | None
    entries: Mapping[str, CatalogEntry]
    by_id: Mapping[DatasetId, CatalogEntry]


class LocalCatalog(Catalog):
    """Names under `home`; several processes may use it at once."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()
        self._names = self._home / "names"
        self._known = _Known(stamp=None, entries={}, by_id={})
        self._files: dict[str, tuple[tuple[int, int, int], CatalogEntry]] = {}
        self._guard = threading.Lock()

    def entries(self) -> Iterator[CatalogEntry]:
        """Iterate over all, by lower-case alias."""
        known = self._read().entries
        yield from (known[name] for name in sorted(known))

    def by_alias(self, alias: str) -> CatalogEntry | None:
        """Look a name up."""
        try:
            return _parse(self._file(alias))
        except FileNotFoundError:
            return None

    def by_id(self, dataset: DatasetId) -> CatalogEntry | None:
        """Look an id up."""
        return self._read().by_id.get(dataset)

    def add(self, entry: CatalogEntry) -> None:
        """Take the name, durably, and tell the dataset's own folder; raises `AlreadyExists` if it is taken."""
        file = self._file(entry.alias)
        pending = durable.write_pending(file, _text(entry))
        try:
            os.link(pending, file)
        except FileExistsError as error:
            raise AlreadyExists(what=f"dataset {entry.alias}") from error
        finally:
            pending.unlink()
        durable.sync_folder(file.parent)
        self._tell(entry)

    def replace(self, entry: CatalogEntry) -> None:
        """Rewrite the entry of an alias that is there, durably; raises `NotFound`."""
        file = self._file(entry.alias)
        if not file.exists():
            raise NotFound(what=f"dataset {entry.alias}")
        durable.write(file, _text(entry))
        self._tell(entry)

    def remove(self, alias: str) -> None:
        """Free the name, durably; nothing happens when it is free."""
        file = self._file(alias)
        if file.exists():
            file.unlink(missing_ok=True)
            durable.sync_folder(file.parent)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the one lock that excludes all other threads and processes that hold it; it never expires."""
        return durable.locked(self._home / "locks" / "names")

    def _tell(self, entry: CatalogEntry) -> None:
        info = layout.dataset_folder(self._home, entry.dataset_id) / "info" / "alias"
        durable.write(info, entry.alias.encode())

    def _file(self, alias: str) -> Path:
        name = quote(alias.lower(), safe="")
        if not name or name.startswith("."):
            raise InvalidInput(text=f"{alias!r} is not a dataset alias")
        return self._names / name

    def _read(self) -> _Known:
        with self._guard:
            stamp = self._stamp()
            if self._known.stamp is None or self._known.stamp != stamp:
                entries = self._scan()
                self._known = _Known(
                    stamp=stamp, entries=entries, by_id={e.dataset_id: e for e in entries.values()}
                )
            return self._known

    def _stamp(self) -> int | None:
        """Return when the folder changed last; None if that was so lately that one more change might not show."""
        try:
            changed = self._names.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        return changed if time.time_ns() - changed > _SETTLED else None

    def _scan(self) -> dict[str, CatalogEntry]:
        """Read the files that are new or replaced since the last time."""
        files: dict[str, tuple[tuple[int, int, int], CatalogEntry]] = {}
        if self._names.is_dir():
            with os.scandir(self._names) as found:
                for item in found:
                    if item.name.startswith("."):
                        continue
                    try:
                        stat = item.stat()
                        mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                        old = self._files.get(item.name)
                        files[item.name] = old if old and old[0] == mark else (mark, _parse(Path(item.path)))
                    except FileNotFoundError:  # removed meanwhile
                        continue
                    except CorruptName as error:  # one file hides no other name
                        log.error("a name is passed over: %s", error)  # noqa: TRY400 - no traceback is needed
        self._files = files
        return {name: entry for name, (_, entry) in files.items()}


def _text(entry: CatalogEntry) -> bytes:
    plain = {
        "alias": entry.alias,
        "datasetId": str(entry.dataset_id),
        "pushTopics": dict(sorted(entry.push_topics.items())),
    }
    return json.dumps(plain, indent=1).encode()


def _parse(file: Path) -> CatalogEntry:
    """Read an entry; raises `CorruptName`, or `FileNotFoundError`."""
    try:
        plain = json.loads(file.read_bytes())
        return CatalogEntry(
            alias=str(plain["alias"]),
            dataset_id=DatasetId.parse(str(plain["datasetId"])),
            push_topics={str(source): str(topic) for source, topic in plain["pushTopics"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise CorruptName(file=f"names/{file.name}", why=str(error)) from error
