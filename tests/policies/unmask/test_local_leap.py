from lastword import AboveThreshold, LocalLeap
from lastword.canvas.canvas import Clock


def filled(rule, prediction):
    """Return the slots that a rule fills in the first step, for each row."""
    canvas = prediction.canvas
    clock = Clock.start(canvas).tick(canvas, None)
    chosen, _ = rule.choose(prediction, prediction.columns.gather(canvas.masked), clock, ())
    return [row.nonzero()[:, 0].tolist() for row in chosen]


def test_the_threshold_is_lower_near_an_anchor(predicted, sure):
    prediction = predicted(sure(0.95, 0.8, 0.8, 0.5), sure(0.8, 0.85, 0.8, 0.7))
    assert filled(LocalLeap(radius=1), prediction) == [[0, 1], [1]]
    assert filled(LocalLeap(radius=2), prediction) == [[0, 1, 2], [1]]
    assert filled(LocalLeap(relaxed_threshold=0.9), prediction) == filled(AboveThreshold(), prediction)
