"""Passwords of accounts, hashed by Argon2id at OWASP's least cost: 19 MiB, two passes."""

import threading
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from odf_common.errors import InvalidInput

SHORTEST, LONGEST = 8, 1024  # characters
PARALLEL_HASHES: Final = 2  # each takes 19 MiB and a core
HASH_SLOTS: Final = threading.BoundedSemaphore(PARALLEL_HASHES)
_HASHER: Final = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


def hash_password(password: str, stored: str | None = None) -> str:
    """Return a salted hash with its parameters: the stored one if it is of this password.

    Raises `InvalidInput` for a password that is too short or too long.
    """
    if not SHORTEST <= len(password) <= LONGEST:
        raise InvalidInput(text=f"a password has {SHORTEST} to {LONGEST} characters")
    if stored is not None and is_password(password, stored):
        return stored
    with HASH_SLOTS:
        return _HASHER.hash(password)


def is_password(password: str, hashed: str | None) -> bool:
    """Return whether a password has this hash. Without one the answer is False, after as much time as with one."""
    if len(password) > LONGEST:
        return False
    with HASH_SLOTS:
        try:
            _HASHER.verify(hashed or _some_hash(), password)
        except (VerificationError, InvalidHashError):
            return False
    return hashed is not None


@cache
def _some_hash() -> str:
    return _HASHER.hash("the password of no account")
