"""Records in, tables and figures out: no model, no GPU."""
