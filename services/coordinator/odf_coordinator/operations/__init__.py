"""The operations behind the `odf` command: modify, reset, stage, import, pull, drop and rebuild, read."""
