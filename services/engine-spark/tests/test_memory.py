"""A query that runs out of memory."""

import pytest

from odf_engine_spark.spark.error_messages import FAULTS
from odf_engine_spark.spark.jvm import Spark


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sum(size(sequence(1, 1000000000 + id))) FROM range(3)",
        "SELECT repeat('x', 2000000000) FROM range(1)",
    ],
)
def test_a_query_that_runs_out_of_memory_fails_alone(spark: Spark, query: str) -> None:
    greedy, other = spark.isolated(), spark.isolated()
    plan = greedy.frame(greedy.parse(query))
    with pytest.raises(FAULTS, match="OutOfMemoryError"):
        greedy.collect(plan)
    assert spark.is_alive()
    assert other.collect(other.frame(other.parse("SELECT count(*) AS n FROM range(9)"))).to_pylist() == [
        {"n": 9}
    ]
