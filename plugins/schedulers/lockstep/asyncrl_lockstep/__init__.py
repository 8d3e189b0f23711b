"""Synchronous baseline: one batch a weight version, nothing while training."""
