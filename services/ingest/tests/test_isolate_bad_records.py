import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_ingest.read.isolate_bad_records import isolate_bad_records


class Reader:
    """Accepts digits only, all at once or not at all."""

    def __init__(self) -> None:
        self.calls = 0

    def read(self, values: Sequence[bytes]) -> pa.Table:
        self.calls += 1
        if not all(value.isdigit() for value in values):
            raise InvalidInput(text="is no number")
        return pa.table({"n": [int(value) for value in values]})


def faults(values: Sequence[bytes]) -> dict[int, str]:
    return {number: "is plainly bad" for number, value in enumerate(values) if value.startswith(b"!")}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 1.0])
@pytest.mark.parametrize("count", [1, 7, 3000])
def test_good_values_are_kept_in_order_and_bad_ones_are_named(count: int, share: float) -> None:
    source = random.Random(f"{count} {share}")
    values = [
        (b"%d" % number) if source.random() >= share else source.choice([b"!", b"x", None])
        for number in range(count)
    ]
    outcome = isolate_bad_records(values, Reader().read, faults)
    good = [number for number, value in enumerate(values) if value is not None and value.isdigit()]
    assert outcome.kept.tolist() == good
    assert ([] if outcome.table is None else outcome.table.column("n").to_pylist()) == good
    assert sorted(outcome.bad) == sorted(set(range(count)) - set(good))


def test_good_values_are_read_once() -> None:
    reader = Reader()
    isolate_bad_records([b"1"] * 100_000, reader.read, faults)
    assert reader.calls == 1


def test_one_bad_value_among_many_costs_few_more_reads() -> None:
    reader = Reader()
    isolate_bad_records([b"1"] * 50_000 + [b"x"] + [b"1"] * 50_000, reader.read, faults)
    assert reader.calls < 140
