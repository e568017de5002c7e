"""From prepared records to a committed block: one queue per dataset, merge, slice, proposal, and again on conflict."""
