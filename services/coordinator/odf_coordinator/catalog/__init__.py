"""The datasets of this node: how to look them up, which this instance updates, and problems of their chains."""
