"""Idempotency keys of the batches of one run: its key and the batch's index, so the last one implies all before it."""

from typing import Final

_MARK: Final = "\x1f"
_MAX_DIGITS: Final = 9


def key_in_run(run: str, place: int) -> str:
    """Return the key of the batch at index `place` (counted from 0) of a run."""
    return f"{run}{_MARK}{place}"


def run_and_place(key: str) -> tuple[str, int] | None:
    """Return the run and index that `key_in_run` combined; None for any other key."""
    run, mark, place = key.rpartition(_MARK)
    is_place = place.isascii() and place.isdecimal() and len(place) <= _MAX_DIGITS
    return (run, int(place)) if mark and is_place else None


def run_of(key: str) -> str:
    """Return the key of a batch's run, as chosen by its client."""
    placed = run_and_place(key)
    return key if placed is None else placed[0]
