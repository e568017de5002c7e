"""Copies datasets between nodes: pulls from and pushes to repositories, and serves this node's datasets over HTTP."""
