"""gRPC: servers with limits on concurrent calls, clients, and the client of an engine that speaks the ODF contract."""
