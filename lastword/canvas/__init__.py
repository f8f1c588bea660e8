"""What decoding changes: the canvas, its windows and clock, what its passes cost."""

from lastword.canvas.canvas import Canvas as Canvas
from lastword.canvas.clock import Clock as Clock
from lastword.canvas.columns import columns_of as columns_of
from lastword.canvas.columns import locate as locate
from lastword.canvas.cost import Cost as Cost
from lastword.canvas.ids import TokenIds as TokenIds
from lastword.canvas.window import Window as Window
