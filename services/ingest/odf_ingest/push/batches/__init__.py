"""The messages of a push source while it is read: polled, buffered, cut into batches, prepared and committed.

A batch that fails is reported; `push/lifecycle` decides what happens to its source.
"""
