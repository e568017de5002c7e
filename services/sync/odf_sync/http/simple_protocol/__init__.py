"""The Simple Transfer Protocol: references, blocks and objects over HTTP, and packs of blocks (wire-facts §8.2)."""
