"""Processes of the node: how each is started, probed, restarted and stopped; and the setup of Kafka and Redis."""
