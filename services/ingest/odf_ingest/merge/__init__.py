"""Merges new records with the content of a dataset: `strategies.py` has one function per strategy."""
