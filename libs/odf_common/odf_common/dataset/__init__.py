"""Operations on a single dataset that services and commands share.

They cover its cached state, the replay of its transforms, and the notes that are stored next to it.
"""
