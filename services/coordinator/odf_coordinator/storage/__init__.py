"""A dataset's objects in the store: whether a block's objects exist, slices, missing data."""
