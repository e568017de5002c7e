import pytest

from odf_common.errors import InvalidInput
from odf_common.identity.keys import PrivateKey, generate, verify_signature


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
