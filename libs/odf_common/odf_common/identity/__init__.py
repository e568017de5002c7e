"""Identities: dataset ids, names and references, and keys and signatures."""
