"""Derivatives: which to update and when, one transform step, and migration to a new query."""
