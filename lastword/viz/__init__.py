"""How results are shown: HTML, figures and replays."""
