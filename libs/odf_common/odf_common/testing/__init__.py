"""What tests share: port contracts, builders, and a whole node."""
