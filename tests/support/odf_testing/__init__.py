"""What tests, benchmarks and examples share: builders, fakes, embedded nodes, stories. No product imports it."""
