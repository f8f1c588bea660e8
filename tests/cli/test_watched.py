"""Watched: an engine that tells how many questions wait and how long they will take."""

from lastword.cli.watched import ONE_OF, Watched
from lastword.engines.base import GenerationRequest, LengthPredictor
from lastword.engines.local import LocalEngine
from lastword.models.weights import fingerprint
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe


def asked(count):
    return {f"q{at}": GenerationRequest([1 + at % 5, 2, 3], at) for at in range(count)}


def test_replies_are_the_engine_s_own_and_every_answer_is_told(toy):
    told = []
    recipe = Recipe(length=Fixed(5))
    watched = Watched(LocalEngine(toy), lambda waiting, left: told.append((waiting, left)))
    found = [reply for some in watched.generate(asked(10), recipe, max_batch_size=2) for reply in some]
    plain = [
        reply for some in LocalEngine(toy).generate(asked(10), recipe, max_batch_size=2) for reply in some
    ]
    assert [(r.key, r.text) for r in found] == [(r.key, r.text) for r in plain]
    counts = [waiting for waiting, _ in told]
    assert counts == sorted(counts, reverse=True)
    assert {*counts} == {*range(11)}
    assert told[0] == (10, None)
    assert all(left is not None and left >= 0 for _, left in told[1:])
    assert told[-1] == (0, 0)
    assert counts.count(10) > 2  # told of steps before there was an answer
    assert watched.model_info.fingerprint == fingerprint(toy)


def test_some_questions_are_probed_and_no_more_than_one_of_eight(toy):
    class Counting(LocalEngine):
        probed = 0

        def predict_lengths(self, requests, recipe, *, max_batch_size):
            self.probed += len(requests)
            return iter(())

        def generate(self, requests, recipe, *, max_batch_size):
            return iter(())

    for count, probes in ((1, 1), (ONE_OF, 1), (10 * ONE_OF, 10), (1000, 63)):
        engine = Counting(toy)
        watched = Watched(engine, lambda *_: None)
        assert not list(watched.generate(asked(count), Recipe(Survival(4)), max_batch_size=64))
        assert engine.probed == probes


def test_nobody_listens_when_it_is_over(toy):
    engine = LocalEngine(toy)
    replies = Watched(engine, lambda *_: None).generate(asked(3), Recipe(length=Fixed(2)), max_batch_size=1)
    next(replies)
    assert engine.on_reply is not None
    assert engine.on_step is not None
    replies.close()
    assert (engine.on_reply, engine.on_step) == (None, None)


class Elsewhere:
    """An engine that is not of this process and cannot predict."""

    def __init__(self, model):
        self._local, self.closed = LocalEngine(model), False
        self.model_info = self._local.model_info

    def generate(self, requests, recipe, *, max_batch_size):
        return self._local.generate(requests, recipe, max_batch_size=max_batch_size)

    def close(self):
        self.closed = True


def test_of_another_engine_replies_are_heard(toy):
    told, engine = [], Elsewhere(toy)
    watched = Watched(engine, lambda waiting, left: told.append((waiting, left)))
    assert not isinstance(watched, LengthPredictor)
    assert isinstance(Watched(LocalEngine(toy), lambda *_: None), LengthPredictor)
    assert sum(map(len, watched.generate(asked(6), Recipe(length=Fixed(3)), max_batch_size=1))) == 6
    assert [waiting for waiting, _ in told] == [6, 5, 4, 3, 2, 1, 0]
    watched.close()
    assert engine.closed
