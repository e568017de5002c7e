"""The embedded node behind `odf up`: starts Kafka, Redis and the services, restarts them, and leaves no process."""
