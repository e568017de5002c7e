"""Copies of datasets between nodes, folders and buckets.

`pull` brings chains in; `push` sends them out and takes in those that other nodes push. Here is what both share:
comparing chains, blocks and objects of a repository, the local side of a copy, signatures, privacy and aliases.
"""
