"""Kafka; nothing outside this package imports `confluent_kafka`."""
