"""What the node serves over HTTP: datasets, pushes; who may do what."""
