"""Prepares the records of a batch of messages or of a file, independently of the dataset's earlier records.

The steps are: read, preprocess, and add event times.
"""
