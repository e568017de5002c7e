"""What gRPC servers and clients of the node agree on; apart, so that a client loads nothing of a server."""

from typing import Final

LIMIT: Final = 64 * 1024 * 1024  # bytes of one message
CODE_KEY: Final = "odf-code"
ADVICE_KEY: Final = "odf-advice-bin"
