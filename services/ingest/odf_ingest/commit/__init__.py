"""From prepared records to a committed block: one queue per dataset, merge, slice, proposal, retry on conflict."""
