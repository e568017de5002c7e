"""The lock of the process that settles a dataset's pushes."""

from pathlib import Path

import pytest
from odf_testing.builders import a_dataset

from odf_common.errors import Damaged
from odf_ingest.accept.receipts import Receipts


def test_a_lock_that_cannot_be_opened_is_a_fault_of_the_store_and_no_bug(tmp_path: Path) -> None:
    (tmp_path / "accepted" / a_dataset(1).folder / "worker.lock").mkdir(parents=True)
    with pytest.raises(Damaged), Receipts(tmp_path).working(a_dataset(1)):
        pass
