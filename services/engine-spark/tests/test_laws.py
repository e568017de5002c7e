"""Any batching of blocks gives the same records; the same request gives the same bytes."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from odf_testing.engine import (
    COUNTS,
    HOUR,
    HOURLY,
    MINUTE,
    Block,
    Make,
    flight,
    reading,
    sql,
)


def _random_blocks(
    source: random.Random, make: Callable[[int], tuple[object, ...]], count: int
) -> list[Block]:
    blocks, watermark = [], 0
    for n in range(count):
        rows = [make(source.randrange(max(0, n - 2) * HOUR // 2, (n + 2) * HOUR // 2)) for _ in range(4)]
        watermark = max(watermark, source.randrange(0, (n + 1) * HOUR // 2))
        blocks.append(Block(rows=rows if source.random() < 0.8 else (), watermark=watermark if n else None))
    blocks.append(Block(watermark=9 * HOUR))
    return blocks


def test_batching_does_not_matter(derive: Make) -> None:
    source = random.Random(11)
    flights = _random_blocks(
        source, lambda at: flight(at, source.uniform(0, 1), origin=source.choice(["JFK", "LGA"])), 9
    )
    weather = _random_blocks(
        source, lambda at: reading(at, source.uniform(0, 9), source.choice(["JFK", "LGA"])), 9
    )
    whole = derive(sql(*HOURLY), flights=flights, weather=weather)
    whole.pull()
    assert len(whole.rows()) > 5
    for _ in range(5):
        cut = derive(sql(*HOURLY), flights=flights, weather=weather)
        steps = [[*sorted(source.choices(range(11), k=3)), 10] for _ in range(2)]
        for until in zip(*steps, strict=True):
            cut.pull(*until)
        assert Counter(cut.rows()) == Counter(whole.rows())
        assert cut.watermark == whole.watermark


def test_the_same_request_gives_the_same_bytes(derive: Make) -> None:
    source = random.Random(3)
    rows = [flight(source.randrange(3 * HOUR), source.uniform(0, 1)) for _ in range(300)]
    runs = [derive(sql(COUNTS), flights=[Block(rows=rows, watermark=2 * HOUR)]) for _ in range(2)]
    for run in runs:
        run.pull()
    for name in ("data-0", "checkpoint-0"):
        assert (runs[0].folder / name).read_bytes() == (runs[1].folder / name).read_bytes()


@pytest.mark.parametrize("function", ["percentile(dep_delay, 0.5)", "max(flight)", "max(dest)"])
def test_floats_of_many_groups_are_summed_in_the_order_of_records(derive: Make, function: str) -> None:
    source = random.Random(3)
    query = COUNTS.replace("count(*)", function).replace("1 hour", "20 minutes")
    blocks = []
    for n in range(4):
        times = [source.randrange(max(0, n - 2) * 10 * MINUTE, (n + 1) * 10 * MINUTE) for _ in range(1500)]
        rows = [flight(at, source.uniform(0, 1), origin=str(source.randrange(300))) for at in times]
        blocks.append(Block(rows=rows, watermark=max(0, n - 2) * 10 * MINUTE))
    blocks.append(Block(watermark=9 * HOUR))
    whole, stepwise = (derive(sql(query), flights=blocks) for _ in range(2))
    whole.pull()
    for until in range(1, 6):
        stepwise.pull(until)
    assert stepwise.rows() == whole.rows()
