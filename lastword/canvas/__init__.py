"""The canvas: tokens of prompts and answers, sets of columns, block windows and clocks."""
