"""What the demo needs beside the manifests: the expected answers, and a node to run it on."""
