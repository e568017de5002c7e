"""Copies of datasets: compare chains, fetch and check what is missing, have the coordinator move the head."""
