"""Starts a group when a whole group has finished."""
