"""The metadata chain: its state (a fold), its rules, building and walking it, planning transforms. Pure."""
