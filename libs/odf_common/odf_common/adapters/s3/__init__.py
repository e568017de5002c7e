"""Datasets in an S3 bucket; the keys are the same as the paths in a local dataset folder (wire-facts §6.1).

A conditional PUT moves a head, in place of the local lock. Files that only this node uses stay in its home.
"""
