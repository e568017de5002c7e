"""Conversion of Arrow values to and from Spark's types, codes for equality and order, and operations of records."""
