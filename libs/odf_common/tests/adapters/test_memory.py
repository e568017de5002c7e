import os
from pathlib import Path

import pytest

from odf_common.adapters.memory import max_decoded_bytes

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
