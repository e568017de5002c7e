"""From a batch of messages or a file to records: read, preprocess, event time; independent of earlier records."""
