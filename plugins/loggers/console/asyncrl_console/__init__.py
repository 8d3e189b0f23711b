"""Live progress on a terminal, plain lines elsewhere."""
