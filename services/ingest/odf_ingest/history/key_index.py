"""An index of all keys that were ever seen: sorted runs, which a batch of keys is looked up in."""

import numpy as np
import numpy.typing as npt

from odf_ingest.history.keys import Keys, first_of_each
from odf_ingest.history.run_store import RunStore


class KeyIndex:
    """A set of keys."""

    def __init__(self, store: RunStore | None = None) -> None:
        """Use the runs of `store`; None: start empty, in memory."""
        self.store = store or RunStore()

    def __len__(self) -> int:
        """Return the number of keys."""
        return sum(map(len, self.store.runs))

    def holds(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for each of the ascending keys whether it is in the set."""
        is_held = np.zeros(len(keys), dtype=np.bool_)
        for run in self.store.runs:
            is_held |= run.find(keys) >= 0
        return is_held

    def add(self, keys: Keys, head: str = "") -> None:
        """Add ascending, distinct keys, none of which is in the set; they reach the block `head`."""
        self.store.append(keys, None, head)

    def fresh(self, keys: Keys) -> tuple[npt.NDArray[np.int64], Keys]:
        """Return the index of the first record of each key not in the set, ascending; and those keys, sorted."""
        distinct, first = first_of_each(keys)
        is_new = ~self.holds(distinct)
        return np.sort(first[is_new]), distinct[is_new]
