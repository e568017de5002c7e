"""Consumption of a service's messages: the loop, lanes that keep each dataset's order, retry, pools of threads."""
