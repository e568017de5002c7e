"""The `odf` command: one module per command under `commands`, and what they share."""
