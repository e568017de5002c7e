"""Manifests into events: drafts, validation against chain, schemas and engine, and the creation of datasets."""
