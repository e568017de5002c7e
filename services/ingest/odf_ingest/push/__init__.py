"""Push sources: their Kafka topics are read here, from the position in the chain to the batch that is committed."""
