"""Copies of datasets between nodes, folders and buckets.

`pull_dataset` brings chains in, `push_dataset` sends them out, `accept_push` takes in those that other nodes push. They
share the blocks and objects of a repository, and the local side of a copy.
"""
