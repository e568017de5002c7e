"""The `odf` commands, each a function `<name>_command`; a module is imported when one of its commands is invoked."""
