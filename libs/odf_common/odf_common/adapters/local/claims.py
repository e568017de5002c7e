"""Claims on datasets as locked files: `$ODF_HOME/claims/<fed01…>`, with one JSON object per line.

The lock on the file is the claim, so it ends exactly when its process ends; a process that is merely stopped keeps it.
The file records what an interrupted operation may leave behind. It is removed when the claim is settled.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import structlog

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded_methods, read_file
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import PREFIX, DatasetId
from odf_common.ports.store import CatalogEntry, Claim

log = structlog.stdlib.get_logger(__name__)


@guarded_methods
class LocalClaim(Claim):
    """A claim on a dataset that this process holds; used by one thread."""

    def __init__(self, file: Path, handle: int, dataset: DatasetId) -> None:
        """Hold the claim by `handle`, the open and locked `file`."""
        self._file = file
        self._handle: int | None = handle
        self._entry = _parse(os.pread(handle, os.fstat(handle).st_size, 0), dataset)

    @property
    def entry(self) -> CatalogEntry:
        """Return the recorded entry; its alias is empty before the first write."""
        return self._entry or CatalogEntry(alias="", dataset_id=_dataset(self._file.name))

    def write(self, entry: CatalogEntry) -> None:
        """Append a record durably; a line that a power failure truncates does not damage earlier lines."""
        assert self._handle is not None, "the claim is held"
        topics = sorted({*self.entry.push_topics.values(), *entry.push_topics.values()})
        line = json.dumps({"alias": entry.alias, "topics": topics}).encode()
        _append(self._handle, b"\n" + line + b"\n")
        durable.sync_folder(self._file.parent)
        self._entry = CatalogEntry(
            alias=entry.alias, dataset_id=entry.dataset_id, push_topics={topic: topic for topic in topics}
        )

    def settle(self) -> None:
        """End the claim and its records: remove the file durably before unlocking it.

        A process that waits for the lock then sees that the file is gone.
        """
        durable.remove(self._file)
        self._close()

    def release(self) -> None:
        """Unlock the file; remove it only if nothing was recorded."""
        try:
            if self._handle is not None and self._entry is None:
                durable.remove(self._file)
        finally:
            self._close()

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def try_claim(folder: Path, dataset: DatasetId) -> LocalClaim | None:
    """Claim a dataset; return None while another thread or process holds the claim or is removing its file."""
    durable.make_folder(folder)
    file = folder / dataset.folder
    handle = durable.try_lock(file, os.O_CREAT)
    if handle is None:
        return None
    try:
        return LocalClaim(file, handle, dataset)
    except BaseException:
        os.close(handle)
        raise


def read_claims(folder: Path) -> Iterator[CatalogEntry]:
    """Iterate over the records of all claims, both held and abandoned ones."""
    try:
        files = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    for file in files:
        try:
            dataset = _dataset(file.name)
        except InvalidInput:  # not a claim
            continue
        try:
            raw = read_file(file)
        except FileNotFoundError:  # settled in the meantime
            continue
        except OSError as error:
            log.warning("claim cannot be read", file=str(file), why=str(error))
            raw = b""  # its dataset is claimed, whatever it may have created
        yield _parse(raw, dataset) or CatalogEntry(alias="", dataset_id=dataset)


def _dataset(name: str) -> DatasetId:
    return DatasetId.parse(PREFIX + name)


def _append(handle: int, line: bytes) -> None:
    os.lseek(handle, 0, os.SEEK_END)
    view = memoryview(line)
    while view:
        view = view[os.write(handle, view) :]
    os.fsync(handle)


def _parse(raw: bytes, dataset: DatasetId) -> CatalogEntry | None:
    """Return one entry that combines all complete lines; None if there are none."""
    entry: CatalogEntry | None = None
    topics: dict[str, str] = {}
    for line in raw.split(b"\n"):
        try:
            plain = json.loads(line)
            topics |= {str(topic): str(topic) for topic in plain["topics"]}
            entry = CatalogEntry(alias=str(plain["alias"]), dataset_id=dataset, push_topics=topics)
        except (ValueError, KeyError, TypeError):  # truncated
            continue
    return entry
