"""What runs in the program's own interpreter before it: the standard library and nothing else.

The sources are sent along by `lastword.sandbox.runner`; the package itself is not visible there.
"""
