"""Finding datasets by words: what is said of each, an index of each repository, and the search itself."""
