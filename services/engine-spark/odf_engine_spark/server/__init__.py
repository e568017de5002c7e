"""The engine's process: its gRPC service, threads for requests, identity, and standby."""
