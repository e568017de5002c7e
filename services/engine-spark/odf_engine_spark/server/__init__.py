"""The process: gRPC, request threads, identity, the standby engine."""
