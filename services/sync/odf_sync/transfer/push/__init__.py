"""Pushes, on both sides: sends a dataset to a node, a folder or a bucket, and accepts what another node pushes."""
