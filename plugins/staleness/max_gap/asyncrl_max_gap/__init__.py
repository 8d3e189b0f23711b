"""Refuses groups with a token older than max_staleness versions."""
