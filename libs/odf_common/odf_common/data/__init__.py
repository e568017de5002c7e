"""Records: their columns, their schemas, and the Parquet files that store them."""
