"""From manifests to events: drafts, validation against chain, schemas and engine, creation of datasets."""
