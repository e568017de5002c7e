"""What a person asks about push sources: drain, resume, skip, settings, rejected messages."""
