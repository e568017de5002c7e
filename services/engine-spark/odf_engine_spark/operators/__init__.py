"""Incremental operators, from changelogs to changelogs: groups, top N, running aggregates, temporal joins."""
