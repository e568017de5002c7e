"""The coordinator's API: gRPC calls, bus messages, and their responses."""
