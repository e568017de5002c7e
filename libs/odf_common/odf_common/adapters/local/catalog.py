"""The catalog of dataset names as files, with one JSON object per name; a file is read again only when it has changed.

The file's name is the dataset's name, so rename(2) on the file renames the dataset atomically. Before the rename, the
new spelling is written into the file next to the old one; the file's name decides which of the two is valid.

The folder of each dataset contains a copy of the file, `notes/name`, from which a damaged file is restored.
"""

import contextlib
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import structlog

from odf_common.adapters.local import claims, durable, stores
from odf_common.adapters.local.faults import (
    LASTING,
    fault,
    fault_text,
    guarded_methods,
    read_file,
    translate_os_errors,
)
from odf_common.errors import AlreadyExists, Damaged, InvalidInput, NotFound, StorageUnavailable
from odf_common.identity.dataset_refs import PREFIX, DatasetId
from odf_common.ports.store import NAME_RECORD, Catalog, CatalogEntry, Claim

log = structlog.stdlib.get_logger(__name__)

MAX_FILE_NAME: Final = 255  # bytes, of Linux's file systems
# File system timestamps are coarse: a younger folder may change again without a new mtime.
_MTIME_SETTLED_NS: Final = 100_000_000
_RETRY_SECONDS: Final = 5.0  # a repaired file need not change its folder's mtime


class CorruptName(Damaged):
    """The catalog entry of a dataset cannot be read."""

    ADVICE = (
        "restore the file from a backup, or free the name with `odf delete NAME`; the dataset's own "
        "files stay"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FolderSnapshot:
    """The content of the folder when its mtime was `stamp`; if `stamp` is None, it must be read again."""

    stamp: int | None
    entries: Mapping[str, CatalogEntry]
    by_id: Mapping[DatasetId, CatalogEntry]
    unreadable: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The content of one name's file, and `mark`, by which a change of the file is detected."""

    mark: tuple[int, int, int]
    entry: CatalogEntry


@guarded_methods
class LocalCatalog(Catalog):
    """The names of datasets under `home`; several processes may use it at the same time."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()
        self._names = self._home / "names"
        self._snapshot = _FolderSnapshot(stamp=None, entries={}, by_id={})
        self._files: dict[str, _File] = {}
        self._faults: dict[str, str] = {}
        self._retry_at = 0.0
        self._guard = threading.Lock()

    def entries(self) -> Iterator[CatalogEntry]:
        """Iterate over all entries, sorted by lower-case alias."""
        entries = self._read().entries
        yield from (entries[name] for name in sorted(entries))

    def by_alias(self, alias: str) -> CatalogEntry | None:
        """Return the entry of a name, without regard to case; None if no dataset has the name.

        Raises `CorruptName` if its file is damaged and cannot be restored.
        """
        if len(_file_name(alias)) > MAX_FILE_NAME:
            return None
        file = self._file(alias)
        try:
            return _parse(file)
        except FileNotFoundError:
            return None
        except CorruptName:
            restored = self._read().entries.get(file.name)
            if restored is None:
                raise
            return restored

    def by_id(self, dataset: DatasetId) -> CatalogEntry | None:
        """Return the entry of a dataset; None if the dataset has no name."""
        return self._read().by_id.get(dataset)

    def add(self, entry: CatalogEntry) -> None:
        """Add a name durably, after recording it in the dataset's folder; raises `AlreadyExists` if it is taken."""
        file = self._file(entry.alias)
        if durable.exists(file):
            raise AlreadyExists(what=f"dataset {entry.alias}")
        self._record(entry)
        pending = durable.write_pending(file, _text(entry))
        try:
            os.link(pending, file)
        except FileExistsError as error:
            raise AlreadyExists(what=f"dataset {entry.alias}") from error
        finally:
            pending.unlink()
        durable.sync_folder(file.parent)

    def replace(self, entry: CatalogEntry) -> None:
        """Replace the entry of an existing name durably; raises `NotFound` if the name does not exist."""
        file = self._file(entry.alias)
        if not durable.exists(file):
            raise NotFound(what=f"dataset {entry.alias}")
        self._record(entry)
        durable.write(file, _text(entry))

    def rename(self, alias: str, entry: CatalogEntry) -> None:
        """Rename the dataset `alias` to the name in `entry`, atomically and durably.

        Raises `NotFound` if `alias` does not exist, `AlreadyExists` if the new name is taken.
        """
        old, new = self._file(alias), self._file(entry.alias)
        if not durable.exists(old):
            raise NotFound(what=f"dataset {alias}")
        if durable.exists(new):
            raise AlreadyExists(what=f"dataset {entry.alias}")
        self._record(entry)  # before the rename: on a full disk the dataset keeps its name
        durable.write(old, _text(entry))
        old.rename(new)
        durable.sync_folder(new.parent)

    def remove(self, alias: str) -> None:
        """Remove a name durably, if it exists."""
        file = self._file(alias)
        if durable.exists(file):
            durable.remove(file)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the catalog's lock in a `with` block; it excludes other threads and processes, and never expires."""
        return durable.lock_file(self._home / "locks" / "names")

    def claim(self, dataset: DatasetId) -> Claim | None:
        """Claim a dataset; return None while another thread or process holds the claim.

        A claim contains what an earlier holder has recorded, if that holder was killed.
        """
        return claims.try_claim(self._home / "claims", dataset)

    def claims(self) -> tuple[CatalogEntry, ...]:
        """Return the records of all claims, both held and abandoned ones."""
        return tuple(claims.read_claims(self._home / "claims"))

    def unreadable(self) -> tuple[str, ...]:
        """Return the names whose files cannot be read, so that it is unknown which datasets have these names."""
        return tuple(sorted(self._read().unreadable))

    def strays(self, untouched_since: float, among: Iterable[DatasetId] | None = None) -> Iterator[DatasetId]:
        """Yield datasets with objects that never had a name and were last written before `untouched_since`.

        The time is in epoch seconds. Only datasets in `among` are examined, if it is given.
        """
        by_id = self._read().by_id
        for dataset in self._folders() if among is None else among:
            folder = stores.dataset_folder(self._home, dataset)
            records = folder / "info" / "alias", stores.note_file(self._home, dataset, NAME_RECORD)
            if (
                dataset not in by_id
                and not any(durable.exists(record) for record in records)
                and _last_written(folder) < untouched_since
            ):
                yield dataset

    def repair_names(self) -> None:
        """Restore damaged names and missing copies; keep one name per dataset, the one that its folder records.

        If the files of a dataset cannot be read or written, this is logged and the dataset stays unchanged.
        """
        names: dict[DatasetId, list[str]] = defaultdict(list)
        for name, entry in self._read().entries.items():
            names[entry.dataset_id].append(name)
        for dataset, entries in names.items():
            try:
                with translate_os_errors():
                    if len(entries) > 1 or not self._is_sound(entries[0]):
                        with self.lock():
                            self._repair_names_of(dataset)
            except (Damaged, StorageUnavailable, NotFound) as error:  # skip only this dataset
                log.warning(
                    "cannot repair the name of a dataset for now", dataset_id=str(dataset), why=str(error)
                )

    def _repair_names_of(self, dataset: DatasetId) -> None:
        """Repair the names of one dataset; the caller holds the catalog's lock."""
        recorded = _file_name(self._recorded_alias(dataset))
        entries = self._read().entries
        names = [name for name, entry in entries.items() if entry.dataset_id == dataset]
        names.sort(key=lambda name: (name == recorded, (self._names / name).stat().st_mtime_ns))
        for name in names[:-1]:
            log.warning("dataset had two names", dataset_id=str(dataset), freed=entries[name].alias)
            self.remove(entries[name].alias)
        for name in names[-1:]:
            if name in self._faults:
                log.warning("rewrote a damaged name", dataset=entries[name].alias, dataset_id=str(dataset))
                self.replace(entries[name])
            elif not self._is_sound(name):
                self._record(entries[name])

    def _is_sound(self, name: str) -> bool:
        """Return whether the file of a name can be read and equals its copy in the dataset's folder."""
        try:
            entry = _parse(self._names / name)
            record = _parse(stores.note_file(self._home, entry.dataset_id, NAME_RECORD), name)
        except (CorruptName, FileNotFoundError):
            return False
        return record == entry and self._recorded_alias(entry.dataset_id) == entry.alias

    def _restore_entry(self, name: str, named: Collection[DatasetId]) -> CatalogEntry | None:
        """Return the entry of a damaged name from the copy in the dataset's folder; None if it is not certain.

        It is certain if exactly one dataset without another name has a copy for this name.
        """
        datasets = [
            dataset
            for dataset in self._folders()
            if dataset not in named and _file_name(self._recorded_alias(dataset)) == name
        ]
        if len(datasets) != 1:
            return None
        try:
            return _parse(stores.note_file(self._home, datasets[0], NAME_RECORD), name)
        except (CorruptName, FileNotFoundError):  # made by an earlier release
            return CatalogEntry(alias=self._recorded_alias(datasets[0]), dataset_id=datasets[0])

    def _recorded_alias(self, dataset: DatasetId) -> str:
        """Return the name in the dataset's folder that other nodes read; empty if there is none."""
        try:
            file = stores.dataset_folder(self._home, dataset) / "info" / "alias"
            return read_file(file).decode(errors="replace")
        except OSError:
            return ""

    def _record(self, entry: CatalogEntry) -> None:
        """Record the name in the dataset's folder, for this node and for nodes that pull the dataset."""
        durable.write(stores.note_file(self._home, entry.dataset_id, NAME_RECORD), _text(entry))
        info = stores.dataset_folder(self._home, entry.dataset_id) / "info" / "alias"
        durable.write(info, entry.alias.encode())

    def _folders(self) -> Iterator[DatasetId]:
        try:
            folders = list((self._home / "datasets").iterdir())
        except FileNotFoundError:
            return
        for folder in folders:
            with contextlib.suppress(InvalidInput):
                yield DatasetId.parse(PREFIX + folder.name)

    def _file(self, alias: str) -> Path:
        name = _file_name(alias)
        if not name or name.startswith("."):
            raise InvalidInput(text=f"{alias!r} is not a dataset alias")
        if len(name) > MAX_FILE_NAME:
            raise InvalidInput(
                text=f"the alias {alias[:40]}… is too long; at most {MAX_FILE_NAME} characters"
            )
        return self._names / name

    def _read(self) -> _FolderSnapshot:
        with self._guard:
            stamp = self._stamp()
            is_faulty = bool(self._faults) and time.monotonic() > self._retry_at
            if self._snapshot.stamp is None or self._snapshot.stamp != stamp or is_faulty:
                entries, unreadable = self._scan()
                by_id = {entry.dataset_id: entry for entry in entries.values()}
                self._snapshot = _FolderSnapshot(
                    stamp=stamp, entries=entries, by_id=by_id, unreadable=unreadable
                )
                self._retry_at = time.monotonic() + _RETRY_SECONDS
            return self._snapshot

    def _stamp(self) -> int | None:
        """Return the mtime of the folder; None if it is too recent to reveal a further change."""
        try:
            changed = self._names.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        return changed if time.time_ns() - changed > _MTIME_SETTLED_NS else None

    def _scan(self) -> tuple[dict[str, CatalogEntry], list[str]]:
        """Read the files that have changed since the last scan; return all entries and the unreadable names."""
        files: dict[str, _File] = {}
        faults: dict[str, str] = {}
        damaged: list[str] = []
        for item in self._items():
            old = self._files.get(item.name)
            try:
                files[item.name] = _entry_of(item, old)
            except FileNotFoundError:  # removed in the meantime
                continue
            except CorruptName as error:  # one bad file must not hide other names
                faults[item.name] = str(error)
                damaged.append(item.name)
            except OSError as error:  # a transient error must not remove a name
                faults[item.name] = str(fault(error))
                if old is not None:
                    files[item.name] = old
        entries = {name: file.entry for name, file in files.items()}
        named = {entry.dataset_id for entry in entries.values()}
        restored = {name: self._restore_entry(name, named) for name in damaged}
        entries |= {name: entry for name, entry in restored.items() if entry is not None}
        for name in faults.keys() - self._faults.keys():
            what = f"restored as {restored[name]}" if restored.get(name) else "ignored"
            log.error("name cannot be read", why=faults[name], outcome="kept" if name in files else what)
        self._files, self._faults = files, faults
        return entries, [name for name in faults if name not in entries]

    def _items(self) -> list["os.DirEntry[str]"]:
        try:
            with os.scandir(self._names) as items:
                return [item for item in items if not item.name.startswith(".")]
        except FileNotFoundError:
            return []


def _file_name(alias: str) -> str:
    return quote(alias.lower(), safe="")


def _last_written(folder: Path) -> float:
    """Return the time of the last write to a dataset's folder, in epoch seconds; infinity if the folder is gone."""
    try:
        inside = [Path(item.path) for item in os.scandir(folder) if item.is_dir()]
        return max(entry.stat().st_mtime for entry in (folder, *inside))
    except FileNotFoundError:  # removed in the meantime
        return float("inf")


def _entry_of(item: "os.DirEntry[str]", old: _File | None) -> _File:
    stat = item.stat()
    mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return old if old and old.mark == mark else _File(mark=mark, entry=_parse(Path(item.path)))


def _text(entry: CatalogEntry) -> bytes:
    plain = {
        "alias": entry.alias,
        "datasetId": str(entry.dataset_id),
        "pushTopics": dict(sorted(entry.push_topics.items())),
    }
    if entry.formerly:
        plain["formerly"] = entry.formerly
    if entry.creation:
        plain["creation"] = entry.creation
    return json.dumps(plain, indent=1).encode()


def _parse(file: Path, name: str | None = None) -> CatalogEntry:
    """Parse the file of a name, or a copy of the file; raises `CorruptName`, `FileNotFoundError`."""
    name = name or file.name
    try:
        plain = json.loads(read_file(file))
        alias, formerly = str(plain["alias"]), str(plain.get("formerly", ""))
        return CatalogEntry(
            # A rename interrupted before its second step has not happened.
            alias=next(
                (candidate for candidate in (alias, formerly) if _file_name(candidate) == name), unquote(name)
            ),
            dataset_id=DatasetId.parse(str(plain["datasetId"])),
            push_topics={str(source): str(topic) for source, topic in plain["pushTopics"].items()},
            formerly=formerly,
            creation=str(plain.get("creation", "")),
        )
    except OSError as error:
        if error.errno not in LASTING:
            raise
        raise CorruptName(file=f"names/{name}", why=fault_text(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise CorruptName(file=f"names/{name}", why=str(error)) from error
