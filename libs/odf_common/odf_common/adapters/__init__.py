"""Implementations of the ports; the only homes of SDKs for Kafka, Redis, gRPC and object stores."""
