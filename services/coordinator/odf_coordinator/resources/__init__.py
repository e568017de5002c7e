"""Declarative objects of the node (RFC-018): where they are stored, with their history and their leases."""
