"""The canvas: tokens of prompts and answers, block windows, clocks and costs."""
