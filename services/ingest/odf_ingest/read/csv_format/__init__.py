"""Csv: `csv` reads files and messages, `csv_records` splits text into records, `csv_parse` parses their values."""
