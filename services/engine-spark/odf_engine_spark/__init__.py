"""The Engine service on PySpark: executes preprocess queries, transforms and ad-hoc SQL over Parquet slices."""
