"""Analysis of plans: event time, completeness, retention, joins, windows, and the limits of SQL. Runs no queries."""
