"""Reads of a dataset without a copy of it: its last records and its definitions, as JSON."""
