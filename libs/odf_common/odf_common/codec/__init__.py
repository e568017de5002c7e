"""Codecs for the types of `metadata`: FlatBuffers for chains and engines, YAML and JSON for users."""
