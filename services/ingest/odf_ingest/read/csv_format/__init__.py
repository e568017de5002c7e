"""Csv: `csv` reads files and messages, `csv_records` finds where records end, `csv_parse` turns them into columns."""
