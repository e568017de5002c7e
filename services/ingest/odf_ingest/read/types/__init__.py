"""From what a format holds to values of the declared types, one module per kind of type."""
