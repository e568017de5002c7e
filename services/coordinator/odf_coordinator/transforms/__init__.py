"""Derivatives: which to look at and when, one step of one of them, and migration to a new query."""
