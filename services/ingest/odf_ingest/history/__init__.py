"""What a dataset holds, as merging asks for it: keys, current rows, equality of values, one order of columns."""
