"""Who decodes when: rows at work, the slots they take, and passes replayed as captured graphs."""
