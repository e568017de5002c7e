import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from odf_common.adapters.memory import DecodeBudget, MemoryInUse, max_decoded_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("4294967296\n", GIB // 2),
        ("max\n", None),
        ("1125899906842624\n", None),
        (None, None),
    ],
)
def test_a_table_may_take_an_eighth_of_the_memory(
    tmp_path: Path, limit: str | None, expected: int | None
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert max_decoded_bytes(1 << 50, file) == (expected or machine // 8)
    assert max_decoded_bytes(1000, file) == 1000


def test_tables_are_decoded_together_up_to_a_limit() -> None:
    most = pa.total_allocated_bytes() + 1000
    budget = DecodeBudget(most, wait=0.2)
    with (
        budget.admit(600),
        pytest.raises(MemoryInUse, match="takes the memory for 0 MiB"),
        budget.admit(600),
    ):
        pass
    kept = pa.allocate_buffer(600)
    with pytest.raises(MemoryInUse), budget.admit(600):
        pass
    del kept
    with budget.admit(600):
        pass


def test_a_table_waits_until_another_one_is_released() -> None:
    budget = DecodeBudget(pa.total_allocated_bytes() + 1000)
    kept = [pa.allocate_buffer(600)]
    release = threading.Timer(0.3, kept.clear)
    release.start()
    with budget.admit(600):
        assert not kept
    release.join()
