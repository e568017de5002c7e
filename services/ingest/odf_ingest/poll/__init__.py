"""Polling sources: fetch what is new, and commit it, one block per file (spec: Polling Sources).

`Poller` polls one dataset; `fetch` has one module per kind of fetch step, `unpack` one per kind of prepare step.
Reading, preprocessing and merging are those of pushed files. The source state in the chain alone decides what is new,
so a poll that is killed can be repeated: see `polled_position`.
"""
