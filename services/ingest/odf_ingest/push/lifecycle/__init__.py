"""The lifecycle of push sources: assignment to this instance, start position, phases, and reasons why they stall.

`source_record.py` has the phases and events. The messages of a source and their batches are in `push/batches`.
"""
