"""The case `transactions` at full length: 1,000 of each kind, and ten idle minutes. It takes most of an hour."""

from rows import Row
from transactions import measured


def run() -> list[Row]:
    """Return the rows."""
    return measured(1000, 600.0)
