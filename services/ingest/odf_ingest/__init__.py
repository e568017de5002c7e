"""Brings records into root datasets: fetch, prepare, read, merge, propose."""
