"""Keys of batches that are pushed one after another in one run: whoever knows the last one knows all before it."""

from typing import Final

_MARK: Final = "\x1f"
_DIGITS: Final = 9


def key_in_run(run: str, place: int) -> str:
    """Return the key of the batch at a place, from 0, of the run with this key."""
    return f"{run}{_MARK}{place}"


def run_and_place(key: str) -> tuple[str, int] | None:
    """Return what `key_in_run` made the key of, None for any other key."""
    run, mark, place = key.rpartition(_MARK)
    is_place = place.isascii() and place.isdecimal() and len(place) <= _DIGITS
    return (run, int(place)) if mark and is_place else None


def run_of(key: str) -> str:
    """Return the key of the run that a batch belongs to: what its client chose."""
    found = run_and_place(key)
    return key if found is None else found[0]
