"""What is in the store of a dataset's objects: are those of a block there, which slices, is data missing."""
