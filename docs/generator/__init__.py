"""The pages of `docs/reference`, one module each: text made of declarations."""
