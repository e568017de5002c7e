"""Hashes: how they are written (multihash), over bytes (physical), over records (logical)."""
