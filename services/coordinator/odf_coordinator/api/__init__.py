"""The API of the coordinator: gRPC calls and bus messages."""
