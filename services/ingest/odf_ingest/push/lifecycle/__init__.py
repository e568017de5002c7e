"""The life of a push source: which sources are assigned, where each starts, its phases, and why it is stalled.

The phases and the events between them are in `source_record.py`. What a source reads meanwhile is in `push/batches`.
"""
