"""Work on one dataset that services and commands share.

Its cached state, replay of transforms, notes kept next to it.
"""
