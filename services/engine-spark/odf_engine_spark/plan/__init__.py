"""A query made ready: the plan cut into segments that Spark runs and steps that keep state between them."""
