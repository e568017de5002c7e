"""Finding datasets by words: their summaries, an index of each repository, and the search itself."""
