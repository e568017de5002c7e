"""What others say to the coordinator: gRPC calls of the `odf` command and messages of the bus, and the answers."""
