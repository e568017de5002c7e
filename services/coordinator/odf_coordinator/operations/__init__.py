"""What a person asks for: change, reset, stage, import, pull, drop and rebuild, read."""
