"""The node's HTTP server: datasets, pushes, accounts, and the authorization of requests."""
