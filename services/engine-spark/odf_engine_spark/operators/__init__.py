"""Incremental operators: groups, places, running values, temporal joins, from changelog to changelog."""
