"""Sort the digits: a task with a small model of its own that learns in a minute."""
