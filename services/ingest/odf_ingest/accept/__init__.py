"""Pushes that are accepted before they are committed: durable receipts, and the worker that settles them."""
