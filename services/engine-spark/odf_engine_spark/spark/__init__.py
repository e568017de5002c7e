"""How Spark is used: its JVM and session, plan construction, job groups, readable error messages."""
