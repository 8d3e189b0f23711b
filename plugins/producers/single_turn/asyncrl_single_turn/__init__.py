"""One completion a sample, scored by the task."""
