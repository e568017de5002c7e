"""Every kind of query: cutting the inputs' blocks into requests in any way changes nothing (design: law 1)."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from odf_engine_spark.testing import MINUTE, Derivative, sql
from odf_engine_spark.testing_kinds import KINDS, chains

Make = Callable[..., Derivative]


@pytest.mark.parametrize("kind", KINDS)
def test_batching_does_not_matter(derive: Make, kind: str) -> None:
    steps = KINDS[kind]
    inputs = chains(steps, back=40 * MINUTE)
    whole = derive(sql(*steps), **inputs)
    whole.pull()
    assert whole.rows()
    source = random.Random(11)
    for _ in range(2):
        cut = derive(sql(*steps), **inputs)
        ends = [[*sorted(source.choices(range(7), k=3)), 7] for _ in inputs]
        for until in zip(*ends, strict=True):
            cut.pull(*until)
        assert Counter(cut.rows()) == Counter(whole.rows())
        assert cut.watermark == whole.watermark
        if len(inputs) == 1:
            assert cut.rows() == whole.rows()
