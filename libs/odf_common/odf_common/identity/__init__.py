"""Identities: dataset ids, names and references, keys, signatures."""
