"""HTTP Message Signatures (RFC 9421) of what webhooks post, with `Content-Digest` (RFC 9530).

Covered are the method, the whole URL, the media type and the digest of the body. The signed message begins with
`"@method"`, so it is never what a block's signature or a proof of ownership signs with the same key.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final, Protocol

from odf_common.identity.keys import PrivateKey
from odf_common.identity.signatures import SignerId

METHOD: Final = "POST"
CONTENT_TYPE: Final = "application/json"
LABEL: Final = "odf"  # of the signature in its headers
TAG: Final = "odf-webhook"  # what the signature is for


class Signer(Protocol):
    """Signs messages."""

    @property
    def key_id(self) -> str:
        """Return the name of the key."""

    @property
    def algorithm(self) -> str:
        """Return its name in the registry of RFC 9421."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature."""


@dataclass(frozen=True, slots=True)
class KeySigner:
    """Signs with the key of the node."""

    key: PrivateKey
    algorithm: str = "ed25519"

    @property
    def key_id(self) -> str:
        """Return the key's id, `did:key:z6Mk…`."""
        return str(SignerId.of_key(self.key))

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature."""
        return self.key.sign(message)


@dataclass(frozen=True, slots=True)
class SecretSigner:
    """Signs with a secret that the receiver knows."""

    key_id: str
    secret: str = field(repr=False)
    algorithm: str = "hmac-sha256"

    def sign(self, message: bytes) -> bytes:
        """Return the HMAC; its key is the secret's text in ASCII."""
        return hmac.digest(self.secret.encode("ascii"), message, "sha256")


def signed_headers(url: str, body: bytes, signer: Signer, *, created: int) -> dict[str, str]:
    """Return the headers with which `body` is posted; `created` in seconds since the epoch."""
    covered = {
        "@method": METHOD,
        "@target-uri": url,
        "content-type": CONTENT_TYPE,
        "content-digest": f"sha-256={_bytes(hashlib.sha256(body).digest())}",
    }
    names = " ".join(f'"{name}"' for name in covered)
    parameters = f'({names});created={created};keyid="{signer.key_id}";alg="{signer.algorithm}";tag="{TAG}"'
    lines = [f'"{name}": {value}' for name, value in covered.items()]
    message = "\n".join((*lines, f'"@signature-params": {parameters}'))
    return {
        "Content-Type": CONTENT_TYPE,
        "Content-Digest": covered["content-digest"],
        "Signature-Input": f"{LABEL}={parameters}",
        "Signature": f"{LABEL}={_bytes(signer.sign(message.encode('ascii')))}",
    }


def _bytes(value: bytes) -> str:
    """Return a byte sequence of RFC 8941."""
    return f":{base64.b64encode(value).decode()}:"
