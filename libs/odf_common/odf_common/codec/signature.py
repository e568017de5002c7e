"""Encoding of block signatures as JSON, for the object `signatures/<block hash>` (docs/formats/signature.md)."""

import json
from typing import Final

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.identity.keys import BlockSignature, SignerId

VERSION: Final = 1
SIZE_LIMIT: Final = 512  # bytes; a signature takes 227


def encode_signature(signature: BlockSignature) -> bytes:
    """Return `{"version":1,"signer":"did:key:…","signature":"f…"}` followed by a newline."""
    content = {
        "version": VERSION,
        "signer": str(signature.signer),
        "signature": multibase.encode(signature.signature),
    }
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def decode_signature(raw: bytes) -> BlockSignature:
    """Decode a signature; raises `InvalidInput` unless the bytes are exactly those that `encode_signature` writes."""
    if len(raw) > SIZE_LIMIT:
        raise InvalidInput(text=f"a signature has at most {SIZE_LIMIT} bytes")
    try:
        content = json.loads(raw.decode())
        signer, signature = content["signer"], content["signature"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(text="expected a JSON object with version, signer and signature") from error
    if not isinstance(signer, str) or not isinstance(signature, str):
        raise InvalidInput(text="expected signer and signature as strings")
    block_signature = BlockSignature(signer=SignerId.parse(signer), signature=multibase.decode(signature))
    # Exactly one spelling is valid, so no byte can be changed unnoticed.
    if encode_signature(block_signature) != raw:
        raise InvalidInput(text=f"not in the canonical form of version {VERSION}")
    return block_signature
