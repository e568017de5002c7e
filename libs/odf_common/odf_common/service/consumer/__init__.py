"""How a service takes its messages: the loop, lanes that keep each dataset's order, retry, pools of threads."""
