"""Secrets of resources as JWE (RFC 7516), in its compact form (docs/adr/0090-secrets-are-bound-to-their-place.md).

A secret arrives in clear text, or as a client has encrypted it to a public key of the node. It is stored encrypted by a
key of the node, with its resource and path in the authenticated header: copied elsewhere, it does not open.
"""

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from joserfc import jwe
from joserfc.jwk import ECKey, OctKey, RSAKey

from odf_common.errors import InvalidInput
from odf_common.resources.passwords import hash_password
from odf_common.resources.secret_keys import ALGORITHMS, KEY_FAULTS, SecretKeys
from odf_common.resources.secret_text import Secret, WrittenSecret

JWE_ENCODING, PASSWORD_ENCODING = "jwe", "argon2id"
MAX_JWE_CHARACTERS: Final = 64 * 1024
CONTENT: Final = "A256GCM"
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*){4}", re.ASCII)
_STAND_IN: Final = "<jwe>"
_AT_REST_MEMBERS: Final = frozenset({"alg", "enc", "kid", "rid", "path"})
_CLIENT_MEMBERS: Final = frozenset({"alg", "enc", "kid", "epk", "apu", "apv", "typ", "cty", "account"})
_FAULTS: Final = (*KEY_FAULTS, AssertionError)
Header = dict[str, object]


class InvalidJwe(InvalidInput):
    """A secret is not a JWE that this node can open, where it is."""

    ADVICE = "write the secret in clear text without contentEncoding, or encrypt it with `odf secret encrypt`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPlace:
    """The place of a secret."""

    account: str
    """The name of the account that owns the resource."""
    resource: str
    """The id of the resource, which is bound to the stored ciphertext."""
    path: str
    """The path in the resource, such as `spec.secrets.NAME`; it is bound to it, too."""


def accept_secret(
    given: WrittenSecret, *, place: SecretPlace, stored: WrittenSecret | None, keys: SecretKeys
) -> WrittenSecret:
    """Return the JWE to store for a secret of a manifest: the stored one if the secret is the same.

    Raises `InvalidJwe`, or `InvalidInput` for another encoding and for a secret that is too long.
    """
    if stored is not None and _is_stored(given, stored, place, keys):
        return stored
    secret = _clear_text(given, place, keys)
    if stored is not None:
        with suppress(InvalidJwe):  # its key was lost: only the new secret can replace it
            if are_equal(secret, decrypt_at_rest(stored.value, place, keys)):
                return stored
    return WrittenSecret(value=encrypt_at_rest(secret, place, keys), content_encoding=JWE_ENCODING)


def _is_stored(given: WrittenSecret, stored: WrittenSecret, place: SecretPlace, keys: SecretKeys) -> bool:
    """Return whether a JWE is the stored one, or that one before it was rewrapped by another key."""
    if given == stored:
        return given.content_encoding == JWE_ENCODING
    if given.content_encoding == JWE_ENCODING:
        with suppress(InvalidJwe):
            former = decrypt_at_rest(given.value, place, keys)
            return are_equal(former, decrypt_at_rest(stored.value, place, keys))
    return False


def accept_password(
    given: WrittenSecret, *, place: SecretPlace, stored: WrittenSecret | None, keys: SecretKeys
) -> WrittenSecret:
    """Return the hash to store for the password of a manifest: the stored one if the password is the same.

    It takes up to a tenth of a second. Raises `InvalidJwe`, or `InvalidInput` for another encoding or length.
    """
    if given.content_encoding == PASSWORD_ENCODING:
        if given != stored:
            raise InvalidInput(
                where=place.path, text="a hash is accepted only where it is stored; give the password"
            )
        return stored
    password = _clear_text(given, place, keys)
    try:
        hashed = hash_password(password, None if stored is None else stored.value)
    except InvalidInput as error:
        raise InvalidInput(where=place.path, text=error.text) from None
    return WrittenSecret(value=hashed, content_encoding=PASSWORD_ENCODING)


def encrypt_at_rest(secret: str, place: SecretPlace, keys: SecretKeys) -> str:
    """Return the JWE to store, by the current key. Raises `InvalidInput` if it would be too long."""
    return _encrypt(secret, keys.of_type(OctKey)[0], place.path, rid=place.resource, path=place.path)


def decrypt_at_rest(text: str, place: SecretPlace, keys: SecretKeys) -> Secret:
    """Return the secret of a stored JWE; raises `InvalidJwe` unless it was encrypted for this place."""
    header = _header(text, place.path, _AT_REST_MEMBERS)
    if (header.get("rid"), header.get("path")) != (place.resource, place.path):
        raise InvalidJwe(where=place.path, text="it was encrypted for another resource or another path")
    return _decrypt(text, header, keys.of_type(OctKey), place.path)


def rewrap(text: str, place: SecretPlace, keys: SecretKeys) -> str:
    """Return a stored JWE by the current key; the same one if it is by that already. Raises `InvalidJwe`."""
    if _header(text, place.path, _AT_REST_MEMBERS).get("kid") == keys.of_type(OctKey)[0].kid:
        return text
    return encrypt_at_rest(decrypt_at_rest(text, place, keys), place, keys)


def encrypt_for_node(secret: str, key: ECKey | RSAKey, account: str | None = None) -> str:
    """Return a secret for a manifest, which only the owner of a public key can open.

    The node accepts it in resources of `account` only; without one, anyone who has the text and an account can use the
    secret there. Raises `InvalidInput` if it would be too long.
    """
    return _encrypt(secret, key, "secret", **({"account": account} if account else {}))


def decrypt_from_client(text: str, place: SecretPlace, keys: SecretKeys) -> Secret:
    """Return the secret that a client has encrypted to a key of this node.

    Raises `InvalidJwe`, also for a secret of another account.
    """
    header = _header(text, place.path, _CLIENT_MEMBERS)
    if str(header.get("account", place.account)).lower() != place.account.lower():
        raise InvalidJwe(where=place.path, text="it was encrypted for another account")
    return _decrypt(text, header, (*keys.of_type(ECKey), *keys.of_type(RSAKey)), place.path)


def are_equal(one: str, other: str) -> bool:
    """Return whether two secrets are equal, after a time that depends on their lengths only."""
    return compare_digest(one.encode(), other.encode())


def _clear_text(given: WrittenSecret, place: SecretPlace, keys: SecretKeys) -> Secret:
    """Return the secret of a manifest."""
    if given.content_encoding is None:
        return Secret(given.value)
    if given.content_encoding != JWE_ENCODING:
        raise InvalidInput(
            where=place.path, text=f"contentEncoding is {JWE_ENCODING} or absent, which means clear text"
        )
    return decrypt_from_client(given.value, place, keys)


def _encrypt(secret: str, key: OctKey | ECKey | RSAKey, where: str, **bound_to: str) -> str:
    header = {"alg": ALGORITHMS[key.key_type], "enc": CONTENT, "kid": key.kid, **bound_to}
    try:
        text = jwe.encrypt_compact(header, secret.encode(), key, registry=_registry())
    except UnicodeEncodeError:
        raise InvalidInput(
            where=where, text="the secret is not valid Unicode"
        ) from None  # its error quotes it
    if len(text) > MAX_JWE_CHARACTERS:
        raise InvalidInput(
            where=where,
            text=f"the secret is too long: encrypted, it has {len(text)} characters of {MAX_JWE_CHARACTERS}",
        )
    return text


def _decrypt(text: str, header: Header, keys: Collection[OctKey | ECKey | RSAKey], where: str) -> Secret:
    """Return the content of a JWE; of what fails, no error has a part of it."""
    key = next((key for key in keys if key.kid == header.get("kid")), None)
    if key is None:
        raise InvalidJwe(where=where, text="it was encrypted to a key that this node does not have")
    if header.get("alg") != ALGORITHMS[key.key_type]:
        raise InvalidJwe(where=where, text=f"alg is not {ALGORITHMS[key.key_type]}, as that of its key is")
    try:
        content = jwe.decrypt_compact(text, key, registry=_registry()).plaintext
        return Secret((content or b"").decode())
    except _FAULTS:
        raise InvalidJwe(where=where, text="it does not open: it is damaged or was changed") from None


def _header(text: str, where: str, members: frozenset[str]) -> Header:
    """Return the protected header of a compact JWE; raises `InvalidJwe` for members that are not accepted."""
    if len(text) > MAX_JWE_CHARACTERS:
        raise InvalidJwe(where=where, text=f"it is longer than {MAX_JWE_CHARACTERS} characters")
    if text == _STAND_IN:
        raise InvalidJwe(where=where, text=f"{_STAND_IN} only stands for a JWE in examples")
    header: object = None
    if _COMPACT.fullmatch(text):
        with suppress(ValueError, RecursionError):
            header = json.loads(urlsafe_b64decode(text.partition(".")[0] + "=="))
    if not isinstance(header, dict):
        raise InvalidJwe(
            where=where, text="it is not a JWE in compact form: five parts of base64url, joined by dots"
        )
    if header.get("enc") != CONTENT:
        raise InvalidJwe(where=where, text=f"enc is not {CONTENT}")
    if header.get("alg") == ALGORITHMS["oct"] and members is _CLIENT_MEMBERS:
        raise InvalidJwe(where=where, text="a stored secret is accepted only where it is stored")
    if not header.keys() <= members:
        raise InvalidJwe(where=where, text=f"its header may have {', '.join(sorted(members))} only")
    return header


def _registry() -> jwe.JWERegistry:
    """Return the limits and algorithms for joserfc; members of headers are checked here."""
    registry = jwe.JWERegistry(algorithms=[*ALGORITHMS.values(), CONTENT], strict_check_header=False)
    registry.max_protected_header_length = MAX_JWE_CHARACTERS  # a path may be long
    return registry
