"""Definitions of datasets: drafts from manifests, validation against chain, schemas and engine, and creation."""
