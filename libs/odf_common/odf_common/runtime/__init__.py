"""What runs the node: settings, wiring, the service loop, the supervisor and the `odf` command."""
