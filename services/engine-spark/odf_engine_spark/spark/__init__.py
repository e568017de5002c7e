"""Use of Spark: its JVM and session, construction of plans, job groups, and readable error messages."""
