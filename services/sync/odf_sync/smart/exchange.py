"""The order of messages of the Smart Transfer Protocol, for both ends (wire-facts §8.4, 8.5). No IO.

A table lists the messages that each side may send in each state. Both sent and received messages are checked against
it, so neither our own error nor a hostile peer can bring an end into an undefined state.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from odf_common.errors import InvalidInput
from odf_sync.smart import messages as msg
from odf_sync.smart.message_json import decode, encode

CLOSE_OK: Final = 1000
CLOSE_FAULT: Final = 1011
MAX_CLOSE_REASON_BYTES: Final = 123  # RFC 6455
ADVICE: Final = {
    msg.InvalidInterval: "the chains have diverged: pull it to a reference with --as NAME@REF, and compare them",
    msg.InvalidHead: "the dataset was changed there meanwhile: pull it, and push again",
    msg.SeedBlockOverwriteRestricted: "push it under another name: the dataset there is not the same one",
    msg.RefCollision: "push it under the name that it has there",
    msg.NameCollision: "push it under another name",
}
NO_TARGET: Final = (
    "push it under the name that it has there; if you see none, another account or another push has it: "
    "try again later, or ask the owner of that node"
)


class Side(Enum):
    """The two sides of an exchange."""

    CLIENT = auto()
    SERVER = auto()


class ExchangeState(Enum):
    """The states of an exchange, each named after the message that led to it."""

    START = auto()
    REQUESTED = auto()
    ACCEPTED = auto()
    BLOCKS_REQUESTED = auto()
    BLOCKS_SENT = auto()
    READY = auto()
    OBJECTS_LISTED = auto()
    LAST_OBJECTS_LISTED = auto()
    UPLOADING = auto()
    LAST_UPLOADING = auto()
    UPLOADED = auto()
    COMPLETING = auto()
    DONE = auto()
    FAILED = auto()


class ProtocolViolated(InvalidInput):
    """The other side sent a message that the protocol does not allow at this point."""


class TransferRefused(InvalidInput):
    """The other node refused the transfer."""

    fault: msg.Fault

    def __str__(self) -> str:
        """Return the reason for the refusal."""
        match self.fault:
            case msg.InvalidHead(expected_head=head):
                why = f"its head is {head}" if head is not None else "it does not have the dataset"
            case msg.InvalidInterval(head=head, tail=tail):
                why = f"{tail} is not in the chain of {head}"
            case msg.SeedBlockOverwriteRestricted():
                why = "it has a dataset with another id or kind under this name"
            case msg.RefCollision(dataset_id=dataset):
                why = f"it has {dataset} under another name"
            case msg.NameCollision(dataset_alias=alias):
                why = f"it has another dataset named {alias[:200]}"
            case msg.UnknownFault(text=text):
                why = text[:500]
            case other:
                why = other.error_message[:500]
        return f"the other node refused: {why}"

    def advice(self) -> str:
        """Return the remedy for this refusal, empty if none is known."""
        if isinstance(self.fault, msg.Internal) and self.fault.phase is msg.Phase.PUSH_TARGET:
            return NO_TARGET
        return ADVICE.get(type(self.fault), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    sender: Side
    message: type[msg.Message]
    then: ExchangeState
    truncated: bool | None = None  # only for such a list of objects

    def fits(self, message: msg.Message) -> bool:
        is_listed = self.truncated is None or (
            isinstance(message, msg.UploadsRequest) and message.is_truncated == self.truncated
        )
        return isinstance(message, self.message) and is_listed


Table = Mapping[ExchangeState, tuple[_Turn, ...]]


def _client(message: type[msg.Message], then: ExchangeState, *, truncated: bool | None = None) -> _Turn:
    return _Turn(sender=Side.CLIENT, message=message, then=then, truncated=truncated)


def _server(message: type[msg.Message], then: ExchangeState) -> _Turn:
    return _Turn(sender=Side.SERVER, message=message, then=then)


def _upload_turns(state: ExchangeState, then: ExchangeState) -> tuple[_Turn, ...]:
    return (
        _server(msg.ProgressRequest, state),
        REFUSED,
        _client(msg.UploadsRunning, state),
        _client(msg.UploadsComplete, then),
    )


# May take the place of any answer of the server's.
REFUSED: Final = _server(msg.Refusal, ExchangeState.FAILED)

PULL: Final[Table] = {
    ExchangeState.START: (_client(msg.PullRequest, ExchangeState.REQUESTED),),
    ExchangeState.REQUESTED: (_server(msg.PullAccepted, ExchangeState.ACCEPTED), REFUSED),
    ExchangeState.ACCEPTED: (_client(msg.MetadataRequest, ExchangeState.BLOCKS_REQUESTED),),
    ExchangeState.BLOCKS_REQUESTED: (_server(msg.MetadataReply, ExchangeState.READY), REFUSED),
    ExchangeState.READY: (_client(msg.DownloadsRequest, ExchangeState.OBJECTS_LISTED),),
    ExchangeState.OBJECTS_LISTED: (_server(msg.DownloadsReply, ExchangeState.READY), REFUSED),
}

# A question about progress may cross with the answer that all was sent: the client still gets it in the next states,
# and may answer it.
_LATE: Final = {
    state: (
        _server(msg.ProgressRequest, state),
        _client(msg.UploadsRunning, state),
        _client(msg.UploadsComplete, state),
    )
    for state in (
        ExchangeState.READY,
        ExchangeState.OBJECTS_LISTED,
        ExchangeState.LAST_OBJECTS_LISTED,
        ExchangeState.UPLOADED,
    )
}
_PUSH: Final[Table] = {
    ExchangeState.START: (_client(msg.PushRequest, ExchangeState.REQUESTED),),
    ExchangeState.REQUESTED: (_server(msg.PushAccepted, ExchangeState.ACCEPTED), REFUSED),
    ExchangeState.ACCEPTED: (_client(msg.NewBlocks, ExchangeState.BLOCKS_SENT),),
    ExchangeState.BLOCKS_SENT: (_server(msg.BlocksAccepted, ExchangeState.READY), REFUSED),
    ExchangeState.READY: (
        _client(msg.UploadsRequest, ExchangeState.OBJECTS_LISTED, truncated=True),
        _client(msg.UploadsRequest, ExchangeState.LAST_OBJECTS_LISTED, truncated=False),
        _client(msg.CompleteRequest, ExchangeState.COMPLETING),  # of no blocks
    ),
    ExchangeState.OBJECTS_LISTED: (_server(msg.UploadsReply, ExchangeState.UPLOADING), REFUSED),
    ExchangeState.LAST_OBJECTS_LISTED: (_server(msg.UploadsReply, ExchangeState.LAST_UPLOADING), REFUSED),
    ExchangeState.UPLOADING: _upload_turns(ExchangeState.UPLOADING, ExchangeState.READY),
    ExchangeState.LAST_UPLOADING: _upload_turns(ExchangeState.LAST_UPLOADING, ExchangeState.UPLOADED),
    ExchangeState.UPLOADED: (_client(msg.CompleteRequest, ExchangeState.COMPLETING),),
    ExchangeState.COMPLETING: (_server(msg.PushConfirmed, ExchangeState.DONE), REFUSED),
    ExchangeState.DONE: (
        _server(msg.PushConfirmed, ExchangeState.DONE),
        REFUSED,
    ),  # what came first was a question about the progress
}
PUSH: Final[Table] = {state: turns + _LATE.get(state, ()) for state, turns in _PUSH.items()}


@dataclass(slots=True, kw_only=True)
class End:
    """The client's or the server's end of an exchange, and its state."""

    side: Side
    table: Table
    state: ExchangeState = field(default=ExchangeState.START)
    refused: str | None = field(default=None, init=False)
    """The type name of the fault in the refusal that this end sent; a refusal ends the exchange."""
    _violated: ExchangeState | None = field(default=None, init=False)

    def note_sent(self, message: msg.Message) -> None:
        """Advance the state for a message that this end sends; the protocol must allow the message."""
        turn = next((turn for turn in self._turns(own=True) if turn.fits(message)), None)
        assert turn is not None, f"{type(message).__name__} cannot be sent in state {self.state}"
        self.state = turn.then
        if isinstance(message, msg.Refusal):
            self.refused = type(message.fault).__name__

    def receive(self, text: str) -> msg.Message:
        """Return the message decoded from its JSON, and advance the state.

        Raises `ProtocolViolated` if the protocol does not allow the message; the exchange has then failed.
        """
        if self.refused is not None:
            raise ProtocolViolated(text=f"the exchange has ended: {self.refused}")
        try:
            turns = tuple(self._turns(own=False))
            # Such as when a client continues before the server has answered.
            if not turns:
                raise InvalidInput(text="no message is expected", where="message")
            message = decode(text, {turn.message for turn in turns})
            turn = next(turn for turn in turns if turn.fits(message))
        except InvalidInput as error:
            # The state before is kept for `phase`: a refusal names the step that failed.
            self._violated, self.state = self.state, ExchangeState.FAILED
            text = f"{error.text} (state {self._violated.name.lower()})"
            raise ProtocolViolated(where=error.where, text=text) from error
        self.state = turn.then
        return message

    @property
    def phase(self) -> msg.Phase:
        """Return the step of the protocol that a fault in the current state belongs to."""
        return (_PULL_PHASES if self.table is PULL else _PUSH_PHASES)[self._violated or self.state]

    def _turns(self, *, own: bool) -> Iterable[_Turn]:
        return (turn for turn in self.table.get(self.state, ()) if (turn.sender is self.side) == own)


_PULL_PHASES: Final = dict.fromkeys(ExchangeState, msg.Phase.PULL_OBJECTS) | {
    ExchangeState.START: msg.Phase.PULL_INITIAL,
    ExchangeState.REQUESTED: msg.Phase.PULL_INITIAL,
    ExchangeState.ACCEPTED: msg.Phase.PULL_METADATA,
    ExchangeState.BLOCKS_REQUESTED: msg.Phase.PULL_METADATA,
    ExchangeState.FAILED: msg.Phase.PULL_METADATA,
}
_PUSH_PHASES: Final = dict.fromkeys(ExchangeState, msg.Phase.PUSH_OBJECTS) | {
    ExchangeState.START: msg.Phase.PUSH_INITIAL,
    ExchangeState.REQUESTED: msg.Phase.PUSH_INITIAL,
    ExchangeState.ACCEPTED: msg.Phase.PUSH_METADATA,
    ExchangeState.BLOCKS_SENT: msg.Phase.PUSH_METADATA,
    ExchangeState.FAILED: msg.Phase.PUSH_METADATA,
    ExchangeState.UPLOADING: msg.Phase.PUSH_UPLOADS,
    ExchangeState.LAST_UPLOADING: msg.Phase.PUSH_UPLOADS,
    ExchangeState.UPLOADED: msg.Phase.PUSH_COMPLETE,
    ExchangeState.COMPLETING: msg.Phase.PUSH_COMPLETE,
}


def fits_close_frame(refusal: msg.Refusal) -> bool:
    """Return whether a refusal fits into the reason of a close frame without being shortened."""
    return len(encode(refusal).encode()) <= MAX_CLOSE_REASON_BYTES


def close_reason(refusal: msg.Refusal) -> bytes:
    """Return a refusal as the reason of a close frame: valid JSON of at most 123 bytes. A long message is cut off."""
    text = encode(refusal)
    # Such a fault has hashes or names that cannot be cut without becoming others: only its kind is sent.
    if not fits_close_frame(refusal) and not isinstance(refusal.fault, msg.Internal):
        refusal = msg.Refusal(
            fault=msg.Internal(phase=msg.Phase.PUSH_TARGET, error_message=type(refusal.fault).__name__)
        )
        text = encode(refusal)
    fault = refusal.fault
    while len(text.encode()) > MAX_CLOSE_REASON_BYTES and isinstance(fault, msg.Internal):
        fault = msg.Internal(phase=fault.phase, error_message=fault.error_message[:-1])
        text = encode(msg.Refusal(fault=fault))
    return text.encode()


def refusal_in(reason: str) -> msg.Refusal | None:
    """Return the refusal in the reason of a close frame, or None if the reason is no refusal."""
    try:
        refusal = decode(reason, (msg.Refusal,))
    except InvalidInput:
        return None
    assert isinstance(refusal, msg.Refusal)
    return refusal
