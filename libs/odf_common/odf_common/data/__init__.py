"""Records: their columns, their schemas, and the Parquet files that hold them."""
