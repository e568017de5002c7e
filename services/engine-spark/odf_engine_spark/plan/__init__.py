"""Query preparation: the plan is split into segments that Spark runs and stages that keep state between requests."""
