"""The embedded node: starts its parts, keeps them running, and leaves no process behind."""
