"""A process of the node: how it is started, probed, restarted and stopped; what Kafka and Redis need for that."""
