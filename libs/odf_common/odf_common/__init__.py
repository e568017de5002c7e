"""The library of all services of a node: the format, ports and adapters, how a service runs, and the `odf` command."""
