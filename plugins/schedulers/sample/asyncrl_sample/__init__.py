"""Starts a group as soon as group_size sample slots are free, whichever groups they came from."""
