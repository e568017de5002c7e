"""The only code that moves heads: locks, rules, compare-and-set, what came of a proposal, announcing."""
