"""The node's HTTP server: datasets, pushes, and authorization of requests."""
