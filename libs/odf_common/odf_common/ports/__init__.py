"""What the node needs of the world, as Protocols; adapters implement them, tests state their contracts."""
