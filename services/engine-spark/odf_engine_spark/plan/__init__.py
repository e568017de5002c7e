"""Preparation of queries: a plan is split into segments, which Spark runs, and stages, which keep state."""
