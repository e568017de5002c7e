"""Hashes: multihashes, physical hashes of bytes, and logical hashes of records."""
