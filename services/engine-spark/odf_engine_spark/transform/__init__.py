"""Execution of requests: a transform's step, an ad-hoc query, a migration; their inputs and the checkpoint."""
