"""Aggregate functions as accumulators, with the semantics of Spark; some can also remove values."""
