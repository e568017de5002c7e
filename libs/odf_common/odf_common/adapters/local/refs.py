"""References as files such as `refs/head`, moved by compare-and-set under a lock."""

from pathlib import Path

from odf_common.adapters.local import durable, layout
from odf_common.adapters.local.faults import guarded_methods, read_file
from odf_common.errors import Damaged, InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD, check_ref_name, is_ref_name
from odf_common.identity.did import DatasetId
from odf_common.ports.store import RefStore, require_unmoved


class CorruptRef(Damaged):
    """A reference does not hold the hash of a block."""

    ref: str = HEAD

    def advice(self) -> str:
        """Return the command that replaces it."""
        if self.ref == HEAD:
            return (
                "restore the file from a backup, or remove the dataset with `odf delete DATASET`; "
                "other datasets are not affected"
            )
        return (
            "`odf ref delete DATASET@NAME` removes a damaged reference other than the head; `odf ref set DATASET@NAME` "
            "creates it again"
        )


@guarded_methods
class LocalRefStore(RefStore):
    """References under `home`; several processes may use it at once."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash; None if the reference does not exist; raises `CorruptRef`."""
        file = self._file(dataset, ref)
        try:
            return Multihash.parse(read_file(file).decode("ascii").strip())
        except FileNotFoundError:
            return None
        except (InvalidInput, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, InvalidInput) else "its content is not a hash"
            raise CorruptRef(file=f"datasets/{dataset.folder}/refs/{ref}", why=why, ref=ref) from error

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Move the reference durably; raises `HeadMoved`, changing nothing, unless it is `expected` (None: absent)."""
        file = self._file(dataset, ref)
        with durable.lock_file(layout.lock_file(self._home, dataset)):
            require_unmoved(dataset, ref, expected, self.head(dataset, ref))
            durable.write(file, str(new).encode())

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference durably; with `expected=None` unconditionally, even if it is damaged.

        Raises `HeadMoved` if it is not `expected`; then nothing has changed.
        """
        file = self._file(dataset, ref)
        with durable.lock_file(layout.lock_file(self._home, dataset)):
            if expected is not None:
                require_unmoved(dataset, ref, expected, self.head(dataset, ref))
            durable.remove(file)

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the names of all references of a dataset, ascending."""
        folder = self._file(dataset, HEAD).parent
        try:
            return tuple(sorted(file.name for file in folder.iterdir() if is_ref_name(file.name)))
        except FileNotFoundError:
            return ()

    def _file(self, dataset: DatasetId, ref: str) -> Path:
        return layout.ref_file(self._home, dataset, check_ref_name(ref))
