"""Ingests records into root datasets: fetches, reads, prepares and merges them, and proposes blocks."""
