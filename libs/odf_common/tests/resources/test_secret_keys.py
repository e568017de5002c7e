import json
from functools import cache
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from odf_common.errors import InvalidInput
from odf_common.resources.secret_keys import SecretKeys, public_key

PRIVATE_MEMBERS = {"k", "d", "p", "q", "dp", "dq", "qi"}


@cache
def keys() -> SecretKeys:
    return SecretKeys.new()


def private_set() -> dict[str, list[dict[str, Any]]]:
    """Return the keys as JSON, to be changed: `oct`, `EC`, `RSA`."""
    plain: dict[str, list[dict[str, Any]]] = json.loads(keys().text())
    return plain


def test_keys_are_what_they_were_after_they_were_written() -> None:
    again = SecretKeys.parse(keys().text())
    assert again.text() == keys().text()
    assert [key["kty"] for key in private_set()["keys"]] == ["oct", "EC", "RSA"]
    assert len(again.of_type(OctKey)[0].raw_value) == 32
    assert SecretKeys.new().text() != keys().text()


def test_only_current_public_keys_are_published_the_preferred_one_first() -> None:
    newer = keys().with_new_keys()
    published = newer.public()["keys"]
    assert [(key["kty"], key["use"], key["alg"], key["kid"]) for key in published] == [
        ("EC", "enc", "ECDH-ES+A256KW", newer.of_type(ECKey)[0].kid),
        ("RSA", "enc", "RSA-OAEP-256", newer.of_type(RSAKey)[0].kid),
    ]
    assert not any(PRIVATE_MEMBERS & key.keys() for key in published)


def test_a_rotation_adds_current_keys_and_keeps_the_others() -> None:
    newer = keys().with_new_keys()
    assert newer.keys[3:] == keys().keys
    assert len({key.kid for key in newer.keys}) == 6
    assert SecretKeys.parse(newer.text()).keys[0].kid == newer.of_type(OctKey)[0].kid != keys().keys[0].kid


def test_keys_of_an_operator_need_no_rsa_key() -> None:
    plain = private_set()
    del plain["keys"][2]
    assert [key["kty"] for key in SecretKeys.parse(json.dumps(plain)).public()["keys"]] == ["EC"]


@pytest.mark.parametrize(
    "change",
    [
        lambda items: items.pop(0),
        lambda items: items.pop(1),
        lambda items: items.clear(),
        lambda items: items[0].update(k="c2hvcnQgYnV0IG5vdCB0b28gc2hvcnQ"),
        lambda items: items[0].update(alg="A128KW"),
        lambda items: items[0].update(use="sig"),
        lambda items: items[0].update(kid=""),
        lambda items: items[0].update(kid=7),
        lambda items: items[0].pop("kid"),
        lambda items: items[0].update(kty="OKP"),
        lambda items: items[0].update(kty=[]),
        lambda items: items[1].update(kid=items[0]["kid"]),
        lambda items: items[1].pop("d"),
        lambda items: items[1].update(ECKey.generate_key("P-384").as_dict(private=True)),
        lambda items: items[2].update(n="AQAB"),
        lambda items: items.append("key"),
    ],
)
def test_other_sets_are_refused_without_being_quoted(change: Any) -> None:
    plain = private_set()
    secrets = [plain["keys"][0]["k"], plain["keys"][1]["d"], plain["keys"][2]["d"]]
    change(plain["keys"])
    with pytest.raises(InvalidInput, match="expected a JWK set with private keys") as caught:
        SecretKeys.parse(json.dumps(plain))
    assert not any(secret in repr(caught.value) + str(caught.value) for secret in secrets)


@pytest.mark.parametrize("text", ["", "{", "7", "[]", "{}", '{"keys": 7}', "[" * 100_000])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        SecretKeys.parse(text)
    with pytest.raises(InvalidInput):
        public_key(text)


def test_the_first_key_of_a_set_that_fits_is_used_or_a_single_one() -> None:
    published = keys().public()["keys"]
    others = [
        {"kty": "OKP", "crv": "X25519", "x": "AA", "kid": "1"},
        keys().of_type(OctKey)[0].as_dict(private=True),
        {**published[0], "use": "sig"},
        {**ECKey.generate_key("P-384").as_dict(private=False), "kid": "2"},
        7,
    ]
    assert public_key(json.dumps({"keys": [*others, *published]})).kid == published[0]["kid"]
    assert public_key(json.dumps({"keys": [*others, published[1]]})).kid == published[1]["kid"]
    assert public_key(json.dumps(published[0])).kid == published[0]["kid"]
    with pytest.raises(InvalidInput, match="EC on P-256"):
        public_key(json.dumps({"keys": others}))
