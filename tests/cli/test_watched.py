"""Watched: an engine that tells how many questions wait and how long they will take."""

from lastword.cli.watched import ONE_OF, Watched
from lastword.engines.engine import Predicts, Question
from lastword.engines.local import Local
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.survival import Survival
from lastword.recipe.recipe import Recipe


def asked(count):
    return {f"q{at}": Question([1 + at % 5, 2, 3], at) for at in range(count)}


def test_replies_are_the_engine_s_own_and_every_answer_is_told(toy):
    told = []
    recipe = Recipe(length=Fixed(5))
    watched = Watched(Local(toy), lambda waiting, left: told.append((waiting, left)))
    found = [reply for some in watched.ask(asked(10), recipe, rows=2) for reply in some]
    plain = [reply for some in Local(toy).ask(asked(10), recipe, rows=2) for reply in some]
    assert [(r.key, r.text) for r in found] == [(r.key, r.text) for r in plain]
    counts = [waiting for waiting, _ in told]
    assert counts == sorted(counts, reverse=True)
    assert {*counts} == {*range(11)}
    assert told[0] == (10, None)
    assert all(left is not None and left >= 0 for _, left in told[1:])
    assert told[-1] == (0, 0)
    assert counts.count(10) > 2  # told of steps before there was an answer
    assert watched.model is toy


def test_some_questions_are_probed_and_no_more_than_one_of_eight(toy):
    class Counting(Local):
        probed = 0

        def predict(self, questions, recipe, *, rows):
            self.probed += len(questions)
            return iter(())

        def ask(self, questions, recipe, *, rows):
            return iter(())

    for count, probes in ((1, 1), (ONE_OF, 1), (10 * ONE_OF, 10), (1000, 63)):
        engine = Counting(toy)
        watched = Watched(engine, lambda *_: None)
        assert not list(watched.ask(asked(count), Recipe(Survival(4)), rows=64))
        assert engine.probed == probes


def test_nobody_listens_when_it_is_over(toy):
    engine = Local(toy)
    replies = Watched(engine, lambda *_: None).ask(asked(3), Recipe(length=Fixed(2)), rows=1)
    next(replies)
    assert engine.heard is not None
    assert engine.stepped is not None
    replies.close()
    assert (engine.heard, engine.stepped) == (None, None)


class Elsewhere:
    """An engine that is not of this process and cannot predict."""

    def __init__(self, model):
        self._local, self.closed = Local(model), False
        self.model = model

    def ask(self, questions, recipe, *, rows):
        return self._local.ask(questions, recipe, rows=rows)

    def close(self):
        self.closed = True


def test_of_another_engine_replies_are_heard(toy):
    told, engine = [], Elsewhere(toy)
    watched = Watched(engine, lambda waiting, left: told.append((waiting, left)))
    assert not isinstance(watched, Predicts)
    assert isinstance(Watched(Local(toy), lambda *_: None), Predicts)
    assert sum(map(len, watched.ask(asked(6), Recipe(length=Fixed(3)), rows=1))) == 6
    assert [waiting for waiting, _ in told] == [6, 5, 4, 3, 2, 1, 0]
    watched.close()
    assert engine.closed
