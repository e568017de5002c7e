"""The operations behind the `odf` command: rename, delete, reset, stage, import, pull, drop and rebuild, read."""
