"""Receipts of accepted pushes, durable: `accepted/<dataset>/<id>.json`, and until it is settled the batch itself.

The batch is stored first, as `<number>-<id>.batch`; the receipt makes it count. Numbers are the order of acceptance. A
settled receipt is kept for a week, so that a repeated push finds it.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded_methods, naming, open_file, translate_os_errors
from odf_common.adapters.local.scratch import locked_by_name
from odf_common.errors import Damaged, InvalidInput, NotFound
from odf_common.identity.did import DatasetId
from odf_ingest.errors import KeyReused, TooManyPending

FOLDER: Final = "accepted"
MAX_PENDING_PUSHES: Final = 1000  # per dataset
KEPT_SECONDS: Final = 7 * 24 * 3600.0  # after which a settled receipt is forgotten
BATCH: Final = ".batch"
_RECEIPT: Final = ".json"
_LOCK: Final = "accept.lock"  # held while files of pushes are written or removed
_WORKER: Final = "worker.lock"  # held by the process that settles the dataset's pushes
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class State(StrEnum):
    """The states of an accepted push."""

    ACCEPTED = "accepted"
    COMMITTED = "committed"
    UNCHANGED = "unchanged"  # it appended nothing
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """An accepted push; `state` and the fields after it are its outcome."""

    id: str
    source: str
    key: str
    is_key_generated: bool
    input_format: str
    event_time: str
    """RFC 3339; for records without one."""
    digest: str
    """Of the batch, as in the source state."""
    size: int
    """Bytes of the batch."""
    accepted_at: int
    """Milliseconds since the epoch."""
    state: State = State.ACCEPTED
    head: str = ""
    records: int | None = None
    """Appended records; None if unknown: a kill came between the commit and the receipt."""
    rejected: int = 0
    """Rows that became dead letters; 0 after a kill, as above."""
    rejected_reason: str = ""
    """Of the first of them."""
    code: str = ""
    text: str = ""
    advice: str = ""

    @property
    def is_settled(self) -> bool:
        """Return whether the state is final."""
        return self.state is not State.ACCEPTED

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Read a receipt's file; raises `ValueError` or `TypeError`."""
        plain = json.loads(text)
        return cls(**{**plain, "state": State(plain["state"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPush:
    """A push to settle, and its batch."""

    receipt: Receipt
    batch: Path


def id_of(dataset: DatasetId, source: str, key: str) -> str:
    """Return the id of a push: the same for the same key."""
    return hashlib.blake2b("\0".join((str(dataset), source, key)).encode(), digest_size=16).hexdigest()


@guarded_methods
class Receipts:
    """The receipts in a home; several processes may use them."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER

    def find(self, dataset: DatasetId, id_: str) -> Receipt | None:
        """Return a receipt; None if it does not exist; raises `InvalidInput` unless `id_` is a valid id."""
        if _ID.fullmatch(id_) is None:
            raise InvalidInput(text=f"not a receipt: {id_[:64]!r}")
        file = self._folder_of(dataset) / f"{id_}{_RECEIPT}"
        try:
            return Receipt.parse(file.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            name = f"{FOLDER}/{dataset.folder}/{file.name}"
            raise Damaged(file=name, why=f"it is not a receipt: {error}") from error

    def accept(self, dataset: DatasetId, receipt: Receipt, batch: Path) -> Receipt:
        """Store the receipt and its batch durably, or return the receipt of the same push.

        `batch` stays where it is. A refused push leaves its key free. Raises `KeyReused` if the key came with other
        content, `TooManyPending`.
        """
        folder = self._folder_of(dataset)
        with durable.lock_file(folder / _LOCK):
            earlier = self.find(dataset, receipt.id)
            if earlier is not None and earlier.state is not State.REFUSED:
                if earlier.digest != receipt.digest:
                    text = "other content was pushed with this idempotency key; nothing of this push was accepted"
                    raise KeyReused(text=text, key=receipt.key)
                return earlier
            self._drop_batches(folder, receipt.id)
            numbers = [int(name.partition("-")[0]) for name in self._batches(folder)]
            if len(numbers) >= MAX_PENDING_PUSHES:
                raise TooManyPending(what=f"{len(numbers)} pushes of this dataset")
            _link(batch, folder / f"{max(numbers, default=0) + 1:09d}-{receipt.id}{BATCH}")
            try:
                self._write(folder, receipt)
            except BaseException:
                # It may have its name already. Without a batch it would be found by each repeat and never settled.
                (folder / f"{receipt.id}{_RECEIPT}").unlink(missing_ok=True)
                self._drop_batches(folder, receipt.id)
                raise
        return receipt

    def pending(self, dataset: DatasetId) -> Sequence[PendingPush]:
        """Return the pushes to settle, in the order of acceptance; for the process that holds `working`."""
        folder = self._folder_of(dataset)
        pushes = []
        with durable.lock_file(folder / _LOCK):
            for name in self._batches(folder):
                receipt = self.find(dataset, name.partition("-")[2].removesuffix(BATCH))
                if receipt is None or receipt.is_settled:
                    (folder / name).unlink()  # left by a kill between the two steps of `accept` or `settle`
                else:
                    pushes.append(PendingPush(receipt=receipt, batch=folder / name))
        return pushes

    def settle(self, dataset: DatasetId, receipt: Receipt) -> None:
        """Store the outcome of a push, and delete its batch."""
        folder = self._folder_of(dataset)
        # Once the outcome is stored, a refused push may be accepted again: its new batch has to stay.
        with durable.lock_file(folder / _LOCK):
            self._write(folder, receipt)
            self._drop_batches(folder, receipt.id)

    @contextmanager
    def working(self, dataset: DatasetId) -> Iterator[bool]:
        """Hold the lock under which a dataset's pushes are committed; yields False if another process has it."""
        with translate_os_errors():  # the class guards no entry into a context
            handle = locked_by_name(self._folder_of(dataset) / _WORKER, os.O_CREAT)
        try:
            yield handle is not None
        finally:
            if handle is not None:
                os.close(handle)

    def datasets(self) -> Sequence[DatasetId]:
        """Return the datasets with a push to settle."""
        return [dataset for dataset in self._all() if self._batches(self._folder_of(dataset))]

    def tidy(self) -> None:
        """Remove settled receipts and unfinished writes older than a week."""
        oldest = time.time() - KEPT_SECONDS
        for dataset in self._all():
            folder = self._folder_of(dataset)
            with durable.lock_file(folder / _LOCK):
                for file in folder.glob(f"*{_RECEIPT}"):
                    if (
                        file.stat().st_mtime < oldest
                        and (receipt := self.find(dataset, file.stem))
                        and receipt.is_settled
                    ):
                        file.unlink()
            durable.sweep(folder, oldest)

    def _all(self) -> list[DatasetId]:
        try:
            return [DatasetId.parse(f"did:odf:{folder.name}") for folder in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def _folder_of(self, dataset: DatasetId) -> Path:
        return self._folder / dataset.folder

    def _batches(self, folder: Path) -> list[str]:
        return sorted(file.name for file in folder.glob(f"*{BATCH}"))

    def _drop_batches(self, folder: Path, id_: str) -> None:
        for file in folder.glob(f"*-{id_}{BATCH}"):
            file.unlink()

    def _write(self, folder: Path, receipt: Receipt) -> None:
        text = json.dumps(asdict(receipt), indent=1, sort_keys=True)
        durable.write(folder / f"{receipt.id}{_RECEIPT}", text.encode())


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, durably: a receipt without its batch would answer repeats of a push that is lost."""
    try:
        with open_file(source) as content, naming(source):
            os.fsync(content.fileno())
        os.link(source, target)
        durable.sync_folder(target.parent)
    except FileNotFoundError as error:
        raise NotFound(what=f"staged file {source.name}") from error


def refuse(receipt: Receipt, *, code: str, text: str, advice: str) -> Receipt:
    """Return the receipt of a push that was refused."""
    return replace(receipt, state=State.REFUSED, code=code, text=text, advice=advice)
