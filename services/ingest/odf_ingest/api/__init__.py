"""The API of ingest: gRPC calls and bus messages."""
