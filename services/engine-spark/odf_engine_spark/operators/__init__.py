"""Incremental operators, from changelog to changelog: groups, top N, running aggregates, temporal joins."""
