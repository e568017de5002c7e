"""Pulls: compare with a repository, fetch and check what is missing, have the coordinator move the head."""
