"""Push sources: reading their Kafka topics, from the position in the chain to the committed batch."""
