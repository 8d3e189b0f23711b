"""Keeps groups of any age."""
