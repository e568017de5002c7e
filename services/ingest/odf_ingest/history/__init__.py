"""A dataset's content as needed for merging: keys, current rows, equality of values, column alignment."""
