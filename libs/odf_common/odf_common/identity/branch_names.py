"""Named references of a chain: `head`, which all readers follow, and others; `DATASET@NAME` in commands."""

import re
from typing import Final

from odf_common.errors import InvalidInput

HEAD: Final = "head"
MARK: Final = "@"
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,62}")


def is_ref_name(name: str) -> bool:
    """Return whether a reference may have the name; `head` is only valid in lower case."""
    return _NAME.fullmatch(name) is not None and (name == HEAD or name.lower() != HEAD)


def check_ref_name(name: str) -> str:
    """Return the name; raises `InvalidInput` unless a reference may have it."""
    if not is_ref_name(name):
        expected = f"1 to 63 letters, digits, '-' and '_', a letter or digit first, and {HEAD} in lower case"
        raise InvalidInput(text=f"{name!r} is not the name of a reference; expected {expected}")
    return name


def split_ref(text: str) -> tuple[str, str]:
    """Return the part before `@` and the name of the reference after it, by default `head`."""
    dataset, mark, name = text.partition(MARK)
    return dataset, check_ref_name(name) if mark else HEAD
