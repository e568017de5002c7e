"""Consumption of a service's messages: the loop, lanes that preserve the order per dataset, retries, thread pools."""
