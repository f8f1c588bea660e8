from __future__ import annotations

import torch

from lastword.canvas.canvas import Canvas, Clock


def fill(canvas, row, count):
    """The leftmost `count` masks of a row become words."""
    where = torch.zeros_like(canvas.masked)
    where[row, canvas.masked[row].nonzero()[:count, 0]] = True
    return canvas.write(where, torch.zeros_like(canvas.tokens))


def test_first_tick_opens_every_row(ids):
    canvas = Canvas.blank([[1], [1]], torch.tensor([4, 2]), ids)
    clock = Clock.start(canvas).tick(canvas, None)
    assert clock.step.tolist() == [0, 0]
    assert clock.block_start.tolist() == [True, True]
    assert clock.in_window.tolist() == [0, 0]
    assert clock.masks_at_start.tolist() == [4, 2]


def test_steps_count_while_the_window_stays(ids):
    canvas = Canvas.blank([[1]], torch.tensor([4]), ids)
    clock = Clock.start(canvas).tick(canvas, None)
    clock = clock.tick(fill(canvas, 0, 1), None)
    assert (clock.step.item(), clock.in_window.item(), clock.masks_at_start.item()) == (1, 1, 4)
    assert not clock.block_start.item()


def test_the_next_block_opens_anew_with_its_own_masks(ids):
    canvas = Canvas.blank([[1]], torch.tensor([5]), ids)
    clock = Clock.start(canvas).tick(canvas, 3).tick(fill(canvas, 0, 3), 3)
    assert (clock.in_window.item(), clock.masks_at_start.item()) == (0, 2)
    assert clock.block_start.item()


def test_rows_keep_their_own_time(ids):
    canvas = Canvas.blank([[1], [1]], torch.tensor([4, 4]), ids)
    clock = Clock.start(canvas).tick(canvas, 2).tick(fill(canvas, 1, 2), 2)
    assert clock.in_window.tolist() == [1, 0]
    assert clock.block_start.tolist() == [False, True]


def test_a_window_whose_edge_moved_opens(ids):
    short = Canvas.blank([[1]], torch.tensor([3]), ids)
    longer = Canvas.blank([[1]], torch.tensor([6]), ids)
    clock = Clock.start(short).tick(short, None).tick(longer, None)
    assert clock.block_start.item()
    assert clock.masks_at_start.item() == 6


def test_a_resized_row_opens_its_window_anew(ids):
    """Its edges may stay where they are: an insertion pushes other columns out of the block."""
    canvas = Canvas.blank([[1], [1]], torch.tensor([6, 6]), ids)
    clock = Clock.start(canvas).tick(canvas, 3)
    longer = canvas.insert_masks(torch.tensor([2, 2]), torch.tensor([0, 2]))
    clock = clock.tick(longer, 3)
    assert clock.block_start.tolist() == [False, True]
    assert clock.in_window.tolist() == [1, 0]
    assert clock.tick(longer, 3).block_start.tolist() == [False, False]
