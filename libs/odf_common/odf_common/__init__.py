"""What all services of a node share: the format, ports and adapters, how a service runs, and the `odf` command."""
