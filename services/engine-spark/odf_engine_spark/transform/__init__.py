"""Execution of requests: steps of transforms, ad-hoc queries and migrations; their inputs and checkpoints."""
