"""Hashes: their representation (multihash), over bytes (physical), over records (logical)."""
