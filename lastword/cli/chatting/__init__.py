"""A conversation in the terminal: who answers, what is heard of an answer, how it is shown."""
