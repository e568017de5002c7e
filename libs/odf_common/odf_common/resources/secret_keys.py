"""Keys for the secrets of resources, as a JWK set (RFC 7517) that is private to the node.

Keys of type `oct` encrypt secrets at rest. Clients encrypt secrets for a manifest to keys of types `EC` and `RSA`,
whose public halves are published. Of each type the first key is current, and the others only open what exists.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self, TypeVar, assert_never

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, RSAKey

from odf_common.errors import InvalidInput

SecretKey = OctKey | ECKey | RSAKey
KeyOfType = TypeVar("KeyOfType", OctKey, ECKey, RSAKey)
TYPES: Final[Mapping[str, type[SecretKey]]] = {"oct": OctKey, "EC": ECKey, "RSA": RSAKey}
# What encrypts the key of the content (RFC 7518, 4.1), by type of key.
ALGORITHMS: Final[Mapping[str, str]] = {"oct": "A256KW", "EC": "ECDH-ES+A256KW", "RSA": "RSA-OAEP-256"}
KEY_BITS: Final = 256
CURVE: Final = "P-256"
MIN_RSA_BITS, RSA_BITS = 2048, 3072
MAX_KID_CHARACTERS: Final = 256
KEY_FAULTS: Final = (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
_NOT_PUBLIC: Final = (
    f"expected a JWK set with a public key for encryption: EC on {CURVE}, "
    f"or RSA of {MIN_RSA_BITS} bits or more"
)
_NOT_PRIVATE: Final = (
    f"expected a JWK set with private keys: oct of {KEY_BITS} bits, EC on {CURVE}, and maybe RSA of "
    f"{MIN_RSA_BITS} bits or more; each has a kid of its own"
)


@dataclass(frozen=True, slots=True, repr=False)
class SecretKeys:
    """The private keys of a node, those of a type from the newest to the oldest."""

    keys: tuple[SecretKey, ...]

    @classmethod
    def new(cls) -> Self:
        """Return one new key of each type, from the system's randomness."""
        # The kid is the thumbprint (RFC 7638), so it names one key only; 256 random bits cannot be found from theirs.
        return cls(
            (
                OctKey.generate_key(KEY_BITS, {"use": "enc", "alg": ALGORITHMS["oct"]}, auto_kid=True),
                ECKey.generate_key(CURVE, {"use": "enc", "alg": ALGORITHMS["EC"]}, auto_kid=True),
                RSAKey.generate_key(RSA_BITS, {"use": "enc", "alg": ALGORITHMS["RSA"]}, auto_kid=True),
            )
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the result of `text`. Raises `InvalidInput`, which never has a part of the text."""
        try:
            keys = _keys_in(text)
        except KEY_FAULTS:
            raise InvalidInput(text=_NOT_PRIVATE) from None  # its error may quote a key
        if not {OctKey, ECKey} <= {type(key) for key in keys} or not all(key.is_private for key in keys):
            raise InvalidInput(text=_NOT_PRIVATE)
        return cls(keys)

    def text(self) -> str:
        """Return the JWK set with private keys: only for a file of the node's user."""
        return json.dumps({"keys": [key.as_dict(private=True) for key in self.keys]}, indent=2) + "\n"

    def with_new_keys(self) -> Self:
        """Return these keys and a new one of each type, which is current from then on."""
        return type(self)((*type(self).new().keys, *self.keys))

    def current(self) -> Self:
        """Return the current key of each type."""
        firsts = (self.of_type(OctKey)[:1], self.of_type(ECKey)[:1], self.of_type(RSAKey)[:1])
        return type(self)(tuple(key for first in firsts for key in first))

    def before(self, others: Self) -> Self:
        """Return these keys, and those of the others that are not among them: they only open what exists."""
        own = {key.kid for key in self.keys}
        return type(self)((*self.keys, *(key for key in others.keys if key.kid not in own)))

    def of_type(self, kind: type[KeyOfType]) -> tuple[KeyOfType, ...]:
        """Return the keys of a type, the current one first."""
        return tuple(key for key in self.keys if isinstance(key, kind))

    def public(self) -> dict[str, list[dict[str, object]]]:
        """Return the JWK set of the current keys for clients, the preferred one first."""
        current: tuple[SecretKey, ...] = (*self.of_type(ECKey)[:1], *self.of_type(RSAKey)[:1])
        return {"keys": [dict(key.as_dict(private=False)) for key in current]}

    def __repr__(self) -> str:
        """Return the ids, not the keys."""
        return f"SecretKeys({', '.join(str(key.kid) for key in self.keys)})"


def public_key(text: str) -> ECKey | RSAKey:
    """Return the key to encrypt to from a JWK set, as a node publishes it, or from one JWK: the first that fits.

    Raises `InvalidInput` if there is none.
    """
    with suppress(*KEY_FAULTS):
        plain = json.loads(text)
        for item in plain.get("keys", [plain]):
            # A set may have keys for other purposes, and of other types (RFC 7517, 5).
            with suppress(*KEY_FAULTS):
                (key,) = _keys_in(json.dumps({"keys": [item]}))
                if isinstance(key, ECKey | RSAKey):
                    return key
    raise InvalidInput(text=_NOT_PUBLIC)


def _keys_in(text: str) -> tuple[SecretKey, ...]:
    """Return the keys of a JWK set; raises one of `KEY_FAULTS`."""
    keys = tuple(TYPES[item["kty"]].import_key(item) for item in json.loads(text)["keys"])
    if len({key.kid for key in keys}) < len(keys):
        raise ValueError
    for key in keys:
        _require_usable(key)
    return keys


def _require_usable(key: SecretKey) -> None:
    """Raise `ValueError` unless a key has a kid, its type's algorithm, and the size for it."""
    match key:
        case OctKey():
            is_fit = len(key.raw_value) * 8 == KEY_BITS
        case ECKey():
            is_fit = key.curve_name == CURVE
        case RSAKey():
            is_fit = key.raw_value.key_size >= MIN_RSA_BITS
        case _:
            assert_never(key)
    plain = key.as_dict(private=False)
    named = (
        plain.get("alg", ALGORITHMS[key.key_type]) == ALGORITHMS[key.key_type]
        and plain.get("use", "enc") == "enc"
    )
    if not (is_fit and named and isinstance(key.kid, str) and 0 < len(key.kid) <= MAX_KID_CHARACTERS):
        raise ValueError
