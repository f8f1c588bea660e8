"""Commands that measure, write records, and turn records into tables and figures."""
