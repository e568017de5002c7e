"""The Smart Transfer Protocol: messages, the order they come in, archives of blocks, and both ends over WebSocket."""
