"""Services over gRPC: servers and their limits, clients, and the client of an engine that speaks the ODF contract."""
