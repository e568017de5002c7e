"""The metadata chain: its state (the fold), its rules, building and walking it, planning transforms. Pure."""
