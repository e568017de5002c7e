"""Resources (RFC-018): their values, references, selectors, templates, schedules and phases. Pure."""
