"""Your own prompts and answers from JSON lines, scored by exact, regex or math."""
