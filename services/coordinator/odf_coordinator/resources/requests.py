"""Keys of requests, by which repetitions are known.

The same request with the same `Idempotency-Key` gets the former answer for a day, and changes nothing. The answer to a
batch is kept by the transaction that applies it, so a repetition after a lost answer or a kill is safe.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self

from odf_common.errors import Conflict, InvalidInput
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.store import Snapshot, Transaction

REQUEST_KEYS: Final = "request keys"
ANSWER_KEPT_MS: Final = 24 * 3_600_000
MAX_CHARACTERS: Final = 200


class RequestKeyReused(Conflict):
    """The key belongs to another request of the account."""

    MESSAGE = "the key {key!r} was sent with another request before"
    ADVICE = "send each request with a key of its own, and only its repetitions with the same"

    key: str


class Repeated(Exception):
    """The request was carried out before."""

    def __init__(self, answer: Any) -> None:
        """Keep the answer that was given."""
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """The key that a client has chosen for a request, and a digest of the request."""

    key: str
    digest: str

    @classmethod
    def read(cls, key: str, request: bytes) -> Self:
        """Return the key of a request; raises `InvalidInput` unless it is short and printable."""
        if len(key) > MAX_CHARACTERS or not key.isascii() or not key.isprintable():
            text = f"expected at most {MAX_CHARACTERS} printable ASCII characters"
            raise InvalidInput(where="Idempotency-Key", text=text)
        return cls(key=key, digest=sha256(request).hexdigest())

    def require_new(self, snapshot: Snapshot, account: ResourceId, now_ms: int) -> None:
        """Raise `Repeated` if an account has sent the request before, `RequestKeyReused` if it was another one."""
        note_key = self._note_key(account)
        kept = snapshot.notes(REQUEST_KEYS, [note_key]).get(note_key)
        if kept is None or kept["time"] + ANSWER_KEPT_MS <= now_ms:
            return
        if kept["digest"] != self.digest:
            raise RequestKeyReused(key=self.key)
        raise Repeated(json.loads(kept["answer"]))

    def keep(self, transaction: Transaction, account: ResourceId, answer: Any, now_ms: int) -> None:
        """Keep the answer for repetitions."""
        note = {"digest": self.digest, "answer": json.dumps(answer), "time": now_ms}
        transaction.save_notes(REQUEST_KEYS, {self._note_key(account): note})

    def _note_key(self, account: ResourceId) -> str:
        return f"{account} {self.key}"


def forget_old_keys(transaction: Transaction, now_ms: int) -> None:
    """Remove the answers that are kept no longer."""
    kept = transaction.notes(REQUEST_KEYS)
    old = [note_key for note_key, note in kept.items() if note["time"] + ANSWER_KEPT_MS <= now_ms]
    transaction.save_notes(REQUEST_KEYS, dict.fromkeys(old))
