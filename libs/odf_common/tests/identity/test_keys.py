import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.codec.signature import SIZE_LIMIT, decode_signature, encode_signature
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import physical_hash_of
from odf_common.identity.keys import (
    BlockSignature,
    PrivateKey,
    SignerId,
    block_message,
    generate,
    ownership_message,
    prove_ownership,
    proves_ownership,
    sign_block,
    verify_signature,
)


def test_dataset_id_is_the_public_half() -> None:
    # RFC 8032, 7.1, test 1
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert str(PrivateKey.from_bytes(secret).dataset_id) == f"did:odf:fed01{public}"


def test_generated_keys_differ_and_are_restored_from_their_bytes() -> None:
    one, other = generate(), generate()
    assert one.dataset_id != other.dataset_id
    assert PrivateKey.from_bytes(one.raw).dataset_id == one.dataset_id


def test_signature_holds_for_its_key_and_message_only() -> None:
    one, other = generate(), generate()
    signature = one.sign(b"message")
    assert verify_signature(one.dataset_id.public_key, signature=signature, message=b"message")
    assert not verify_signature(one.dataset_id.public_key, signature=signature, message=b"massage")
    assert not verify_signature(other.dataset_id.public_key, signature=signature, message=b"message")
    assert not verify_signature(one.dataset_id.public_key, signature=b"", message=b"message")


def test_secret_is_not_shown() -> None:
    key = generate()
    assert key.raw.hex() not in repr(key)


def test_key_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidInput, match="32 bytes, got 5"):
        PrivateKey.from_bytes(b"short")


# RFC 8032, 7.1, test 1; its did:key is base58btc of ed 01 and the public key.
KEY = PrivateKey.from_bytes(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
OTHER = PrivateKey.from_bytes(bytes(range(32)))
BLOCK = physical_hash_of(b"block")

keys = st.binary(min_size=32, max_size=32).map(PrivateKey.from_bytes)


def test_a_signer_is_named_as_did_key() -> None:
    signer = SignerId.of_key(KEY)
    assert str(signer) == "did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw"
    assert SignerId.parse(str(signer)) == signer


@pytest.mark.parametrize(
    "text",
    ["", "did:key:", "did:key:z", "did:odf:fed01", f"did:key:f{KEY.dataset_id.raw.hex()}", "did:key:z6Mk0"],
)
def test_no_other_name_is_a_signer(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"expected did:key:z|not an ed25519 key|multibase"):
        SignerId.parse(text)


def test_the_signed_bytes_of_a_block_are_its_domain_and_its_hash() -> None:
    assert block_message(BLOCK) == b"odf/block-signature/v1\0" + b"\x16\x20" + BLOCK.digest


def test_a_signature_holds_for_its_block_and_signer_only() -> None:
    signature = sign_block(KEY, BLOCK)
    assert signature.is_valid_for(BLOCK)
    assert not signature.is_valid_for(physical_hash_of(b"another"))
    assert not BlockSignature(signer=SignerId.of_key(OTHER), signature=signature.signature).is_valid_for(
        BLOCK
    )


def test_a_bare_signature_of_the_hash_is_not_one_of_the_block() -> None:
    bare = BlockSignature(signer=SignerId.of_key(KEY), signature=KEY.sign(BLOCK.raw))
    assert not bare.is_valid_for(BLOCK)


def test_stored_form_is_one_line_of_json() -> None:
    signature = sign_block(KEY, BLOCK)
    hexed = signature.signature.hex()
    expected = f'{{"version":1,"signer":"{signature.signer}","signature":"f{hexed}"}}\n'
    assert encode_signature(signature) == expected.encode()
    assert decode_signature(encode_signature(signature)) == signature


def test_no_flipped_bit_is_overlooked() -> None:
    raw = encode_signature(sign_block(KEY, BLOCK))
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_signature(bytes(damaged))
        except InvalidInput:
            continue
        assert not found.is_valid_for(BLOCK), bit


@given(raw=st.binary(max_size=SIZE_LIMIT + 10))
def test_any_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="expected a JSON object"):
        decode_signature(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"1",
        b"null",
        b'"a"',
        b"{}",
        b"[" * 500,
        b'{"signer":1,"signature":2}',
        b'{"signer":"","signature":""}',
    ],
)
def test_other_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"signer|expected did:key:z"):
        decode_signature(raw)


@given(key=keys, other=keys, challenge=st.binary(), another=st.binary())
def test_a_proof_holds_for_its_dataset_and_challenge_only(
    key: PrivateKey, other: PrivateKey, challenge: bytes, another: bytes
) -> None:
    proof = prove_ownership(key, challenge)
    assert proves_ownership(key.dataset_id, challenge=challenge, signature=proof)
    if another != challenge:
        assert not proves_ownership(key.dataset_id, challenge=another, signature=proof)
    if other != key:
        assert not proves_ownership(other.dataset_id, challenge=challenge, signature=proof)


@given(challenge=st.binary())
def test_no_challenge_makes_a_proof_into_a_signature_of_a_block(challenge: bytes) -> None:
    assert ownership_message(KEY.dataset_id, challenge) != block_message(BLOCK)
    proof = prove_ownership(KEY, challenge)
    assert not BlockSignature(signer=SignerId.of_key(KEY), signature=proof).is_valid_for(BLOCK)
