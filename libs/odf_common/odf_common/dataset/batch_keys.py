"""Idempotency keys of batches: the key of a run and the index of the batch in the run.

The key of the last batch therefore implies that all earlier batches of the run were committed.
"""

from typing import Final

_MARK: Final = "\x1f"
_MAX_DIGITS: Final = 9


def key_in_run(run: str, place: int) -> str:
    """Return the idempotency key of a batch; `place` is its index in the run, from 0."""
    return f"{run}{_MARK}{place}"


def run_and_place(key: str) -> tuple[str, int] | None:
    """Return the run and the index from which `key_in_run` has built the key; None for any other key."""
    run, mark, place = key.rpartition(_MARK)
    is_place = place.isascii() and place.isdecimal() and len(place) <= _MAX_DIGITS
    return (run, int(place)) if mark and is_place else None


def run_of(key: str) -> str:
    """Return the key of the run to which a batch belongs, as the client chose it."""
    placed = run_and_place(key)
    return key if placed is None else placed[0]
