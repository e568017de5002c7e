"""What others say to ingest: gRPC calls of the `odf` command and messages of the bus."""
