"""Arrow values converted to and from Spark's types; equality and order as numbers; operation types."""
