"""Constants shared by the node's gRPC servers and clients; separate, so that clients import no server code."""

from typing import Final

LIMIT: Final = 64 * 1024 * 1024  # bytes of one message
CODE_KEY: Final = "odf-code"
ADVICE_KEY: Final = "odf-advice-bin"
