"""Flows: when their triggers start a run for a target, and how its tasks are carried out."""
