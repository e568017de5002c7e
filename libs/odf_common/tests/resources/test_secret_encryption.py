import base64
import json
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.keywrap import aes_key_wrap
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwe
from joserfc.jwk import ECKey, OctKey, RSAKey

from odf_common.errors import InvalidInput
from odf_common.resources.secret_encryption import (
    MAX_JWE_CHARACTERS,
    InvalidJwe,
    SecretPlace,
    accept_password,
    accept_secret,
    are_equal,
    decrypt_at_rest,
    decrypt_from_client,
    encrypt_at_rest,
    encrypt_for_node,
    rewrap,
)
from odf_common.resources.secret_keys import SecretKeys, public_key
from odf_common.resources.secret_text import Secret, WrittenSecret

SWORDFISH = "swordfish"
PASSWORD = SecretPlace(account="alice", resource="an id", path="spec.password")
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
SECRETS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@cache
def keys() -> SecretKeys:
    return SecretKeys.new()


@cache
def newer_keys() -> SecretKeys:
    return keys().with_new_keys()


def at(name: str = "pw", resource: str = "5c5e0d29-f2b5-4d4c-a7f5-9a5a2a4f5f8d") -> SecretPlace:
    return SecretPlace(account="alice", resource=resource, path=f"spec.secrets.{name}")


@cache
def stored() -> str:
    return encrypt_at_rest(SWORDFISH, at(), keys())


def current(kind: type[ECKey] | type[RSAKey]) -> Mapping[str, Any]:
    """Return a published key as JSON."""
    (key,) = [item for item in keys().public()["keys"] if item["kty"] == kind.key_type]
    return key


@cache
def from_client(kind: type[ECKey] | type[RSAKey] = ECKey) -> str:
    return encrypt_for_node(SWORDFISH, public_key(json.dumps(current(kind))))


def written(value: str, encoding: str | None = "jwe") -> WrittenSecret:
    return WrittenSecret(value=value, content_encoding=encoding)


def clear(value: str) -> WrittenSecret:
    return written(value, None)


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def header_of(text: str) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(unb64(text.partition(".")[0]))
    return header


def with_header(text: str, **members: object) -> str:
    rest = text.partition(".")[2]
    return f"{b64(json.dumps(header_of(text) | members).encode())}.{rest}"


def refuse(value: str, *, encoding: str | None = "jwe", place: SecretPlace | None = None) -> InvalidJwe:
    """Return the error for a secret of a manifest, which has no part of any secret."""
    with pytest.raises(InvalidJwe) as caught:
        accept_secret(written(value, encoding), place=place or at(), stored=None, keys=keys())
    error = caught.value
    trace = "".join(traceback.format_exception(error))
    assert SWORDFISH not in str(error) + repr(error) + error.advice() + trace
    assert error.where == (place or at()).path
    assert "odf secret encrypt" in error.advice()
    return error


def test_a_stored_secret_is_a_jwe_that_names_its_key_and_its_place() -> None:
    assert header_of(stored()) == {
        "alg": "A256KW",
        "enc": "A256GCM",
        "kid": keys().of_type(OctKey)[0].kid,
        "rid": at().resource,
        "path": "spec.secrets.pw",
    }
    assert len(stored().split(".")) == 5
    assert SWORDFISH not in stored()


@given(secret=SECRETS, name=st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_what_is_encrypted_at_rest_opens_at_its_place(secret: str, name: str) -> None:
    text = encrypt_at_rest(secret, at(name), keys())
    assert decrypt_at_rest(text, at(name), keys()) == secret
    assert encrypt_at_rest(secret, at(name), keys()) != text


@pytest.mark.parametrize("kind", [ECKey, RSAKey])
@given(secret=SECRETS)
def test_what_a_client_encrypts_the_node_opens(kind: type[ECKey] | type[RSAKey], secret: str) -> None:
    text = encrypt_for_node(secret, public_key(json.dumps(current(kind))))
    assert decrypt_from_client(text, at(), keys()) == secret


@pytest.mark.parametrize(
    "place",
    [
        at("other"),
        at(resource="another"),
        SecretPlace(account="alice", resource=at().resource, path="spec.secret"),
    ],
)
def test_a_stored_secret_opens_nowhere_else(place: SecretPlace) -> None:
    with pytest.raises(InvalidJwe, match="another resource or another path"):
        decrypt_at_rest(stored(), place, keys())
    assert "only where it is stored" in str(refuse(stored(), place=place))


def test_a_changed_place_in_the_header_does_not_help() -> None:
    place = at("other")
    with pytest.raises(InvalidJwe, match="was changed"):
        decrypt_at_rest(with_header(stored(), path=place.path), place, keys())


@given(data=st.data())
def test_no_changed_character_goes_unnoticed(data: st.DataObject) -> None:
    text, decrypt = data.draw(
        st.sampled_from(
            [
                (stored(), lambda text: decrypt_at_rest(text, at(), keys())),
                (from_client(ECKey), lambda text: decrypt_from_client(text, at(), keys())),
                (from_client(RSAKey), lambda text: decrypt_from_client(text, at(), keys())),
            ]
        )
    )
    index = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.sampled_from(ALPHABET + ".=+/ \n").filter(lambda it: it != text[index]))
    with pytest.raises(InvalidJwe):
        decrypt(text[:index] + character + text[index + 1 :])


@given(text=st.text(ALPHABET + "."), rest=st.text(ALPHABET, max_size=8))
def test_any_other_text_is_refused(text: str, rest: str) -> None:
    refuse(text)
    refuse(f"{stored()}{rest}.")
    refuse(f"{from_client()}{rest}A")


def key_wrapped_by_nothing() -> str:
    """Return what is encrypted directly by the node's key, so that the key would serve two algorithms."""
    key = keys().of_type(OctKey)[0]
    return jwe.encrypt_compact(
        {"alg": "dir", "enc": "A256GCM", "kid": key.kid},
        SWORDFISH,
        OctKey.import_key(key.raw_value),
        algorithms=["dir", "A256GCM"],
    )


def by_password() -> str:
    header = {"alg": "PBES2-HS256+A128KW", "enc": "A256GCM", "kid": "k", "p2c": 1000, "p2s": "c2FsdHNhbHQ"}
    return jwe.encrypt_compact(
        header,
        SWORDFISH,
        OctKey.import_key("the password of some user"),
        algorithms=[str(header["alg"]), "A256GCM"],
    )


def by_another_node() -> str:
    return encrypt_for_node(SWORDFISH, SecretKeys.new().of_type(ECKey)[0])


REFUSED: dict[str, tuple[Callable[[], str], str]] = {
    "none": (lambda: with_header(from_client(), alg="none"), "alg"),
    "no alg": (lambda: with_header(from_client(), alg=None), "alg"),
    "dir": (key_wrapped_by_nothing, "key that this node does not have"),
    "RSA1_5": (lambda: with_header(from_client(RSAKey), alg="RSA1_5"), "alg is not RSA-OAEP-256"),
    "RSA-OAEP with SHA-1": (
        lambda: with_header(from_client(RSAKey), alg="RSA-OAEP"),
        "alg is not RSA-OAEP-256",
    ),
    "ECDH-ES without a wrapped key": (
        lambda: with_header(from_client(), alg="ECDH-ES"),
        "alg is not ECDH-ES+A256KW",
    ),
    "a key for another algorithm": (
        lambda: with_header(from_client(RSAKey), alg="ECDH-ES+A256KW"),
        "alg is not RSA-OAEP-256",
    ),
    "PBES2": (by_password, "its header may have"),
    "A256KW": (stored, "only where it is stored"),
    "zip": (lambda: with_header(from_client(), zip="DEF"), "its header may have"),
    "crit": (lambda: with_header(from_client(), crit=["exp"]), "its header may have"),
    "jwk": (lambda: with_header(from_client(), jwk={"kty": "oct", "k": "AA"}), "its header may have"),
    "A128GCM": (lambda: with_header(from_client(), enc="A128GCM"), "enc is not A256GCM"),
    "A256CBC-HS512": (lambda: with_header(from_client(), enc="A256CBC-HS512"), "enc is not A256GCM"),
    "no kid": (lambda: with_header(from_client(), kid=None), "key that this node does not have"),
    "another node's key": (by_another_node, "key that this node does not have"),
    "a key of the wrong type": (
        lambda: with_header(from_client(), kid=keys().of_type(OctKey)[0].kid),
        "key that this node does not have",
    ),
    "an epk that is no key": (lambda: with_header(from_client(), epk=7), "was changed"),
    "an epk on another curve": (
        lambda: with_header(from_client(), epk=ECKey.generate_key("P-384").as_dict(private=False)),
        "was changed",
    ),
    "an epk that is not on the curve": (
        lambda: with_header(from_client(), epk={"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}),
        "was changed",
    ),
    "no epk": (lambda: with_header(from_client(), epk=None), "was changed"),
    "JSON": (
        lambda: json.dumps(
            dict(
                zip(
                    ("protected", "encrypted_key", "iv", "ciphertext", "tag"),
                    from_client().split("."),
                    strict=True,
                )
            )
        ),
        "not a JWE in compact form",
    ),
    "a JWS": (lambda: ".".join(from_client().split(".")[:3]), "not a JWE in compact form"),
    "six parts": (lambda: f"{from_client()}.", "not a JWE in compact form"),
    "a list as header": (
        lambda: f"{b64(b'[]')}.{from_client().partition('.')[2]}",
        "not a JWE in compact form",
    ),
    "a deep header": (
        lambda: f"{b64(b'[' * 40_000)}.{from_client().partition('.')[2]}",
        "not a JWE in compact form",
    ),
    "padding": (lambda: f"{from_client()}==", "not a JWE in compact form"),
    "an end of line": (lambda: f"{from_client()}\n", "not a JWE in compact form"),
    "nothing": (lambda: "", "not a JWE in compact form"),
    "the stand-in of examples": (lambda: "<jwe>", "only stands for a JWE in examples"),
    "too much": (lambda: f"{from_client()}{'A' * MAX_JWE_CHARACTERS}", "longer than"),
    "no text": (lambda: encrypt_bytes(b"\xff" + SWORDFISH.encode()), "was changed"),
    "lone surrogates": (lambda: "\ud800.a.a.a.a", "not a JWE in compact form"),
}


def encrypt_bytes(content: bytes) -> str:
    key = keys().of_type(ECKey)[0]
    header = {"alg": "ECDH-ES+A256KW", "enc": "A256GCM", "kid": key.kid}
    return jwe.encrypt_compact(header, content, key, algorithms=["ECDH-ES+A256KW", "A256GCM"])


@pytest.mark.parametrize("form", REFUSED)
def test_other_forms_are_refused(form: str) -> None:
    text, why = REFUSED[form]
    assert why in str(refuse(text()))


def test_a_stored_secret_has_no_other_member_and_no_other_algorithm() -> None:
    for text in (with_header(stored(), zip="DEF"), with_header(stored(), exp=7)):
        with pytest.raises(InvalidJwe, match="its header may have alg, enc, kid, path, rid only"):
            decrypt_at_rest(text, at(), keys())
    with pytest.raises(InvalidJwe, match="alg is not A256KW"):
        decrypt_at_rest(with_header(stored(), alg="dir"), at(), keys())
    with pytest.raises(InvalidJwe):
        decrypt_at_rest(from_client(), at(), keys())


def test_applying_the_same_secret_again_changes_nothing() -> None:
    for value, encoding in (
        (SWORDFISH, None),
        (stored(), "jwe"),
        (from_client(ECKey), "jwe"),
        (from_client(RSAKey), "jwe"),
    ):
        for known in (keys(), newer_keys()):
            kept = accept_secret(written(value, encoding), place=at(), stored=written(stored()), keys=known)
            assert kept == written(stored())


def test_another_secret_replaces_the_stored_one() -> None:
    changed = accept_secret(clear("marlin"), place=at(), stored=written(stored()), keys=keys())
    assert changed.content_encoding == "jwe"
    assert decrypt_at_rest(changed.value, at(), keys()) == "marlin"


def test_a_secret_replaces_one_whose_key_was_lost() -> None:
    other = SecretKeys.new()
    changed = accept_secret(clear(SWORDFISH), place=at(), stored=written(stored()), keys=other)
    assert decrypt_at_rest(changed.value, at(), other) == SWORDFISH


@pytest.mark.parametrize("encoding", ["argon2id", "base64", "", "JWE"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(InvalidInput, match="contentEncoding is jwe or absent"):
        accept_secret(written(SWORDFISH, encoding), place=at(), stored=None, keys=keys())


def test_a_secret_that_would_be_too_long_encrypted_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the secret is too long"):
        encrypt_at_rest("a" * 50_000, at(), keys())
    assert decrypt_at_rest(encrypt_at_rest("a" * 48_000, at(), keys()), at(), keys()) == "a" * 48_000


def test_a_secret_that_is_no_unicode_is_refused_without_being_quoted() -> None:
    with pytest.raises(InvalidInput) as caught:
        encrypt_at_rest(f"{SWORDFISH}\ud800", at(), keys())
    assert SWORDFISH not in "".join(traceback.format_exception(caught.value))


def test_after_a_rotation_secrets_open_and_are_rewrapped_once() -> None:
    older, newer = keys(), newer_keys()
    assert decrypt_at_rest(stored(), at(), newer) == SWORDFISH
    again = rewrap(stored(), at(), newer)
    assert header_of(again) == header_of(stored()) | {"kid": newer.of_type(OctKey)[0].kid}
    assert decrypt_at_rest(again, at(), newer) == SWORDFISH
    assert rewrap(again, at(), newer) == again
    assert decrypt_from_client(from_client(), at(), newer) == SWORDFISH
    with pytest.raises(InvalidJwe, match="key that this node does not have"):
        decrypt_at_rest(again, at(), older)


def test_equal_secrets_are_equal() -> None:
    assert are_equal("ä", "ä")
    assert not are_equal("ä", "a")
    assert not are_equal("a", "aa")


def test_a_secret_is_masked_where_it_is_shown() -> None:
    secret = decrypt_at_rest(stored(), at(), keys())
    assert secret == SWORDFISH
    assert repr(secret) == repr({"pw": secret}["pw"]) == "'***'"
    assert repr([Secret("a")]) == "['***']"
    assert SWORDFISH not in repr(clear(SWORDFISH)) + str([written(SWORDFISH)])
    assert SWORDFISH not in repr(keys()) + str(keys()) + repr(at())


def test_a_password_is_stored_as_a_hash_and_an_unchanged_one_keeps_it() -> None:
    hashed = accept_password(clear(SWORDFISH), place=PASSWORD, stored=None, keys=keys())
    assert hashed.value.startswith("$argon2id$")
    assert hashed.content_encoding == "argon2id"
    for value, encoding in ((SWORDFISH, None), (from_client(), "jwe"), (hashed.value, "argon2id")):
        assert accept_password(written(value, encoding), place=PASSWORD, stored=hashed, keys=keys()) == hashed
    assert accept_password(clear("another one"), place=PASSWORD, stored=hashed, keys=keys()) != hashed


def test_a_hash_of_elsewhere_a_short_password_and_a_damaged_one_are_refused() -> None:
    hashed = accept_password(clear(SWORDFISH), place=PASSWORD, stored=None, keys=keys())
    for value, encoding, why in (
        (hashed.value, "argon2id", "only where it is stored"),
        ("brevity", None, "a password has 8 to 1024 characters"),
        (SWORDFISH, "base64", "contentEncoding is jwe or absent"),
    ):
        with pytest.raises(InvalidInput, match=why) as caught:
            accept_password(written(value, encoding), place=PASSWORD, stored=None, keys=keys())
        assert caught.value.where == PASSWORD.path
        assert value not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(InvalidJwe):
        accept_password(written(stored()), place=PASSWORD, stored=None, keys=keys())


def test_a_client_of_another_implementation_is_understood() -> None:
    """Encrypt as RFC 7518, 4.6 says, by primitives only."""
    key = current(ECKey)
    recipient = ec.EllipticCurvePublicNumbers(
        int.from_bytes(unb64(key["x"])), int.from_bytes(unb64(key["y"])), ec.SECP256R1()
    ).public_key()
    ephemeral = ec.generate_private_key(ec.SECP256R1())
    numbers = ephemeral.public_key().public_numbers()
    epk = {"kty": "EC", "crv": "P-256", "x": b64(numbers.x.to_bytes(32)), "y": b64(numbers.y.to_bytes(32))}
    header = {"apu": b64(b"Alice"), "typ": "JOSE", "alg": "ECDH-ES+A256KW", "enc": "A256GCM", "epk": epk} | {
        "kid": key["kid"]
    }
    other_info = b"".join(
        (
            len(b"ECDH-ES+A256KW").to_bytes(4) + b"ECDH-ES+A256KW",
            len(b"Alice").to_bytes(4) + b"Alice",
            (0).to_bytes(4),
            (256).to_bytes(4),
        )
    )
    agreed = ConcatKDFHash(hashes.SHA256(), 32, other_info).derive(ephemeral.exchange(ec.ECDH(), recipient))
    content_key, iv, protected = (
        AESGCM.generate_key(256),
        b"0" * 12,
        b64(json.dumps(header, indent=1).encode()),
    )
    sealed = AESGCM(content_key).encrypt(iv, SWORDFISH.encode(), protected.encode())
    parts = (aes_key_wrap(agreed, content_key), iv, sealed[:-16], sealed[-16:])
    text = ".".join((protected, *map(b64, parts)))
    assert decrypt_from_client(text, at(), keys()) == SWORDFISH


def test_a_secret_for_one_account_is_refused_in_resources_of_others() -> None:
    key = public_key(json.dumps(current(ECKey)))
    assert decrypt_from_client(encrypt_for_node(SWORDFISH, key, "Alice"), at(), keys()) == SWORDFISH
    text = encrypt_for_node(SWORDFISH, key, "bob")
    assert "for another account" in str(refuse(text))
    assert "was changed" in str(refuse(with_header(text, account="alice")))
    assert "for another account" in str(refuse(with_header(text, account=["alice"])))


def test_a_stored_clear_text_is_encrypted_and_not_kept() -> None:
    accepted = accept_secret(clear(SWORDFISH), place=at(), stored=clear(SWORDFISH), keys=keys())
    assert decrypt_at_rest(accepted.value, at(), keys()) == SWORDFISH
