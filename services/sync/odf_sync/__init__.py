"""Copies datasets between nodes: pull from repositories, and the HTTP server that serves ours."""
