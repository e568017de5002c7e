"""The node's needs from the outside, as Protocols; adapters implement them, tests state their contracts."""
