"""Arrow values on their way into Spark and out of it; equality and order as numbers; operations."""
