"""Copies of datasets between nodes, folders and buckets.

`pull_dataset` copies a dataset to this node, `push_dataset` from this node, and `accept_push` stores a dataset that
another node pushes. They share the code that compares chains, transfers objects and commits the local copy.
"""
