"""Writes metrics.jsonl into the run directory."""
