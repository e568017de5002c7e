"""The embedded node of `odf up`: starts Kafka, Redis and the services, restarts them, and stops them all."""
