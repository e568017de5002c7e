"""Runs when a Python process starts whose `PYTHONPATH` names this folder: tests have nodes in processes of their own."""

import tests.mutants.changed_module  # noqa: F401 - importing it is all
