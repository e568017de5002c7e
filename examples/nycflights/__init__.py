"""The demo, apart from its manifests: the expected results, and a node to run it on."""
