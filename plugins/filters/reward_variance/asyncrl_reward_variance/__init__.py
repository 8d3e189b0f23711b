"""Drops groups whose rewards are all alike: they carry no gradient."""
