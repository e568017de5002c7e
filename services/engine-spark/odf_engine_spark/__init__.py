"""The Engine service on PySpark: raw queries, transforms and ad-hoc SQL over Parquet slices."""
