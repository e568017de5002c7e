"""Shares datasets between nodes: simple and smart transfer, the HTTP server, repositories."""
