"""What services and commands share of one dataset: its cached state, replay of transforms, notes kept next to it."""
