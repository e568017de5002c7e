"""Source resources (RFC-018): their definitions, their accepted pushes, and commits of their data."""
