"""One module for each `odf` command; each holds a click command named `command` and is imported when it is invoked."""
