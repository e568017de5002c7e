"""The metadata chain: its state, its rules, building and walking it, planning transforms. All functions are pure."""
