"""Requests carried out: a transform's step, an ad-hoc query, a migration; inputs and the checkpoint."""
