"""Reads the Kafka topics of push sources, from the position in the chain to the committed batch."""
