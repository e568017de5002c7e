"""Shared by tests, benchmarks and examples: builders, fakes, embedded nodes, stories. Never imported by the product."""
