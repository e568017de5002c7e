"""Merges new records with what a dataset has: `strategies.py` has one function per strategy."""
