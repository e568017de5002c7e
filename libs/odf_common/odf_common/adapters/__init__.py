"""Implementations of the ports; only this package imports the SDKs for Kafka, Redis, gRPC and object stores."""
