"""The URLs that a dataset is pulled from and pushed to: a note next to its objects (spec: Dataset Identity)."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore

NOTE: Final = "aliases"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAliases:
    """URLs, or datasets of named repositories, in the order in which they were added; the first is the default.

    Where a dataset was pushed last comes first.
    """

    pull: tuple[str, ...] = ()
    push: tuple[str, ...] = ()

    def with_pull(self, alias: str) -> Self:
        """Return these with a URL to pull from added, unless it is listed."""
        return self if alias in self.pull else replace(self, pull=(*self.pull, alias))

    def with_push(self, alias: str) -> Self:
        """Return these with a URL to push to added, unless it is listed."""
        return self if alias in self.push else replace(self, push=(*self.push, alias))

    def pushed_to(self, alias: str) -> Self:
        """Return these with a URL to push to moved or added to the front."""
        return replace(self.without_push(alias), push=(alias, *self.without_push(alias).push))

    def without_pull(self, alias: str) -> Self:
        """Return these without a URL to pull from."""
        return replace(self, pull=tuple(location for location in self.pull if location != alias))

    def without_push(self, alias: str) -> Self:
        """Return these without a URL to push to."""
        return replace(self, push=tuple(location for location in self.push if location != alias))


def remote_aliases(blobs: BlobStore, dataset: DatasetId) -> RemoteAliases:
    """Return the aliases of a dataset; none if the note is damaged, which the next change replaces."""
    try:
        noted = json.loads(blobs.note(dataset, NOTE) or "{}")
        return RemoteAliases(pull=_texts(noted["pull"]), push=_texts(noted["push"]))
    except (ValueError, KeyError, TypeError):
        return RemoteAliases()


def change_aliases(
    blobs: BlobStore, dataset: DatasetId, change: Callable[[RemoteAliases], RemoteAliases]
) -> RemoteAliases:
    """Change the aliases of a dataset, durably, and return them."""
    with blobs.noting(dataset):
        current = remote_aliases(blobs, dataset)
        changed = change(current)
        if changed != current:
            text = json.dumps({"pull": changed.pull, "push": changed.push})
            blobs.set_note(dataset, NOTE, None if changed == RemoteAliases() else text)
    return changed


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError
    return tuple(value)
