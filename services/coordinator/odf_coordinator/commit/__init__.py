"""The only code that moves heads: locks, rules, compare-and-set, outcomes, announcements."""
