"""Converts the values of a format to the declared types; one module per kind of type."""
