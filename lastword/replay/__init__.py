"""A run shown step by step: frames of one row, as an iterator and as a page that plays them."""
