"""From a batch of messages or a file to records: read, preprocess, event time. The past is not asked."""
