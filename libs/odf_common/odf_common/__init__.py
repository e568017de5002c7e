"""What all services of a node share: the format, the ports and their adapters, the runtime."""
