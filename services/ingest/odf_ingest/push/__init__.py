"""Push sources: records that others bring, through a Kafka topic or in a call."""
