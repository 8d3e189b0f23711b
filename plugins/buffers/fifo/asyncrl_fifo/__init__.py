"""First in, first out buffer of finished groups."""
