"""Operations on push sources: drain, resume, skip, settings, rejected messages."""
