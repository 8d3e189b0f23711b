"""Evaluates on the rollout engines while submission pauses."""
