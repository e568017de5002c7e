"""Aggregate functions as accumulators with Spark's semantics, which can also take values back."""
