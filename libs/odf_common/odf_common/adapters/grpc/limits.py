"""Constants shared by the node's gRPC servers and clients; separate, so that clients import no server code."""

from typing import Final

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of one message
CODE_KEY: Final = "odf-code"
ADVICE_KEY: Final = "odf-advice-bin"
