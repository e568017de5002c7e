"""Every kind of query: neither how blocks are cut into requests nor a request done again changes anything (law 1)."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from odf_testing.engine import MINUTE, Derivative, Make, sql
from odf_testing.engine_kinds import KINDS, chains

from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.transform.transform import Transforms


def pull_after_a_loss(derivative: Derivative, other: Transforms, until: Sequence[int]) -> None:
    """Pull, after another engine that knows nothing of the query has done the same and its answer was lost."""
    lost = [derivative.folder / name for name in ("lost-data", "lost-checkpoint")]
    done = derivative.done or [0] * len(until)
    other.execute(derivative.request(done, until, *lost))
    derivative.pull(*until)
    assert derivative.checkpoint is not None
    kept = [
        derivative.folder / derivative.checkpoint.name.replace("checkpoint", "data"),
        derivative.checkpoint,
    ]
    assert [file.read_bytes() for file in lost] == [file.read_bytes() for file in kept]
    for file in lost:
        file.unlink()


def told(derivative: Derivative) -> list[str]:
    """Return the rows so that each bit of a float counts, and NaN is itself."""
    return [repr(row) for row in derivative.rows()]


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
def test_batching_does_not_matter(spark: Spark, derive: Make, kind: str, seed: int) -> None:
    steps = KINDS[kind]
    inputs = chains(steps, back=40 * MINUTE)
    whole = derive(sql(*steps), **inputs)
    whole.pull()
    assert whole.rows()
    source, other = random.Random(f"{kind} {seed}"), Transforms(spark, is_signed=False)
    cut = derive(sql(*steps), **inputs)
    ends = [[*sorted(source.choices(range(7), k=3)), 7] for _ in inputs]
    for until in zip(*ends, strict=True):
        if source.random() < 0.5:
            pull_after_a_loss(cut, other, until)
        else:
            cut.pull(*until)
    assert Counter(told(cut)) == Counter(told(whole))
    assert cut.watermark == whole.watermark
    if len(inputs) == 1:
        assert told(cut) == told(whole)
