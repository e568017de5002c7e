"""Who and what: dataset ids, names and references, keys."""
