"""Aggregate functions as accumulators with Spark's semantics; some can also retract values."""
