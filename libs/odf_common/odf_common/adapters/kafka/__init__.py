"""Kafka adapters; only this package imports `confluent_kafka`."""
