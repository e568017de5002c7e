"""What services share of one dataset: its chain's cached state, replay of its transforms, and notes kept next to it."""
