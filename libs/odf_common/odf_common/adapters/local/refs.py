"""Heads as files, moved by compare-and-set under a lock."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable, layout
from odf_common.errors import HeadMoved, InvalidInput, VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import RefStore

_REF: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,62}")


@dataclass(eq=False, kw_only=True)
class CorruptRef(VerificationFailed):
    """A reference does not hold the hash of a block."""

    file: str
    why: str


class LocalRefStore(RefStore):
    """References under `home`; several processes may use it at once."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()

    def head(self, dataset: DatasetId, ref: str = "head") -> Multihash | None:
        """Return the hash, None while there is none; raises `CorruptRef`."""
        file = self._file(dataset, ref)
        try:
            text = file.read_bytes().decode("ascii")
            return Multihash.parse(text.strip())
        except FileNotFoundError:
            return None
        except (InvalidInput, UnicodeDecodeError) as error:
            raise CorruptRef(file=f"{dataset.folder}/refs/{ref}", why=str(error)) from error

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = "head"
    ) -> None:
        """Move the reference, durably. Raises `HeadMoved` if it is not `expected`; then nothing has changed."""
        file = self._file(dataset, ref)
        with durable.locked(layout.lock_file(self._home, dataset)):
            actual = self.head(dataset, ref)
            if actual != expected:
                raise HeadMoved(dataset=str(dataset), expected=_text(expected), actual=_text(actual))
            durable.write(file, str(new).encode())

    def _file(self, dataset: DatasetId, ref: str) -> Path:
        if _REF.fullmatch(ref) is None:
            raise InvalidInput(text=f"{ref!r} is not the name of a reference")
        return layout.ref_file(self._home, dataset, ref)


def _text(head: Multihash | None) -> str | None:
    return None if head is None else str(head)
