"""How Spark is used: its JVM and session, plans put together, job groups, errors in the words a person needs."""
