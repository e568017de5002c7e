"""Datasets in a bucket of S3, with the same keys as a dataset's folder has files (wire-facts §6.1).

A head moves by a conditional PUT, which does what `flock` does locally. Files that belong to one node only stay in its
home.
"""
