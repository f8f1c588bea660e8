"""Display of results: HTML for notebooks, figures and replays."""
