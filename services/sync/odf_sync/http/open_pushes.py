"""New datasets that are being pushed: they have no name yet, but their objects are already accepted."""

from collections.abc import Iterator
from contextlib import contextmanager

from odf_common.identity.did import DatasetId


class OpenPushes:
    """The datasets that are being pushed and have no name yet: their objects are accepted already."""

    def __init__(self) -> None:
        """Begin with none."""
        self._datasets: dict[str, list[DatasetId]] = {}

    def dataset(self, alias: str) -> DatasetId | None:
        """Return the dataset that is being pushed to a name, None if there is none."""
        found = self._datasets.get(alias.lower())
        return found[-1] if found else None

    @contextmanager
    def pushing(self, alias: str, dataset: DatasetId) -> Iterator[None]:
        """Accept objects of a dataset."""
        found = self._datasets.setdefault(alias.lower(), [])
        found.append(dataset)
        try:
            yield
        finally:
            found.remove(dataset)
            if not found:
                del self._datasets[alias.lower()]
