"""Existing datasets, their writer, and their problems."""
