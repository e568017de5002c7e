"""Stories over real processes; a package, so that its node ends with its last test."""
