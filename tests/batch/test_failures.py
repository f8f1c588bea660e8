"""A request that fails is written with its reason; if all requests fail, none is written."""

import json

import pytest

import lastword
from lastword.batch import Batch
from lastword.batch.run import MAX_FAILURES
from lastword.engines.local import MAX_ATTEMPTS
from lastword.errors import SettingError
from lastword.models.toy import Letters, Toy
from tests.batch.batches import FIVE, EchoEngine, answer, read_lines, request_line, run, write_lines
from tests.engines.replies import Poisoned


def test_only_the_prompts_at_fault_fail(toy, tmp_path):
    lines = [{"prompt": text} for text in ("abc", "zzz", "def", "ghi", "zaa")]
    source = write_lines(tmp_path / "p.jsonl", *lines)
    found, summary = answer(Poisoned(), source, tmp_path / "a.jsonl")
    healthy, _ = answer(toy, source, tmp_path / "b.jsonl")
    assert [line["failed"] is None for line in found] == [True, False, True, True, False]
    for at in (0, 2, 3):
        assert found[at]["text"] == healthy[at]["text"]
    for at in (1, 4):
        assert f"tried {MAX_ATTEMPTS} times alone" in found[at]["failed"]
        assert (found[at]["text"], found[at]["prompt_tokens"]) == (None, 3)
    assert (summary.answered, summary.failed) == (3, 2)
    again, summary = answer(Poisoned(), source, tmp_path / "a.jsonl")
    assert again == found  # failures are not repeated
    assert summary.before == 5


def test_a_failed_request_has_a_status_and_a_reason(tmp_path):
    source = write_lines(
        tmp_path / "p.jsonl",
        request_line("a", {"model": "m", "prompt": "zzz"}),
        request_line("b", {"model": "m", "prompt": ["abc", "zzz"]}),
        request_line("c", {"model": "m", "prompt": "abc"}),
    )
    found, _ = answer(Poisoned(), source, tmp_path / "a.jsonl")
    assert [line["response"]["status_code"] for line in found] == [500, 500, 200]
    error = found[0]["response"]["body"]["error"]
    assert error["code"] == "decoding_failed"
    assert "tried" in error["message"]


def short_model():
    """Return a model with a short context."""
    model = Toy()
    model.max_seq_len = model.default_max_new_tokens = 100
    return model


@pytest.mark.parametrize("form", ["lines", "openai"])
def test_a_prompt_that_is_too_long_fails_alone(tmp_path, form):
    prompts = [[5] * 90, [5, 6, 7], [5] * 300]
    recipe = lastword.Recipe(length=lastword.Fixed(20))
    lines = [{"tokens": tokens} for tokens in prompts]
    if form == "openai":
        lines = [request_line(name, {"model": "m", "prompt": tokens}) for name, tokens in zip("abc", prompts)]
    source = write_lines(tmp_path / "p.jsonl", *lines)
    found, summary = answer(short_model(), source, tmp_path / "a.jsonl", recipe=recipe)
    assert (summary.answered, summary.failed) == (1, 2)
    for at in (0, 2):
        if form == "lines":
            assert "give a shorter prompt" in found[at]["failed"]
            assert f"the prompt has {len(prompts[at])} tokens" in found[at]["failed"]
        else:
            assert found[at]["response"]["status_code"] == 400
            error = found[at]["response"]["body"]["error"]
            assert error["code"] == "context_length_exceeded"


def test_a_shortened_canvas_is_reported(tmp_path):
    source = write_lines(tmp_path / "p.jsonl", {"tokens": [5] * 30}, {"tokens": [5, 6, 7]})
    recipe = lastword.Recipe(length=lastword.Fixed(80))
    found, _ = answer(short_model(), source, tmp_path / "a.jsonl", recipe=recipe)
    assert [(line["shortened"], line["horizon"]) for line in found] == [(True, 70), (False, 80)]


def test_a_failure_of_the_engine_is_written(toy, tmp_path):
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "a" * n} for n in range(1, 9)])
    engine = EchoEngine(toy, fails=lambda question: len(question.prompt_ids) == 4)
    summary = run(engine, source, tmp_path / "a.jsonl", name="m", max_batch_size=2)
    failed = [line["failed"] for line in read_lines(tmp_path / "a.jsonl")]
    assert failed == [None] * 3 + ["three workers died"] + [None] * 4
    assert summary.failed == 1


def test_many_failures_in_a_row_stop_the_run_and_are_not_written(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("lastword.batch.run.MAX_FAILURES", 6)
    lines = [{"prompt": "a" * n} for n in range(1, 21)]
    source, out = write_lines(tmp_path / "p.jsonl", *lines), tmp_path / "a.jsonl"
    engine = EchoEngine(toy, fails=lambda question: len(question.prompt_ids) > 5)
    with pytest.raises(SettingError, match=r"in a row failed.*three workers died"):
        run(engine, source, out, name="m", max_batch_size=2)
    assert [line["failed"] for line in read_lines(out)] == [None] * 5 + ["three workers died"]
    summary = run(EchoEngine(toy), source, out, name="m", max_batch_size=2)
    assert (summary.answered, summary.failed, summary.before) == (19, 1, 6)


def test_a_run_stops_also_where_only_the_first_answer_of_each_line_fails(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("lastword.batch.run.MAX_FAILURES", 3)
    requests = [request_line(str(n), {"model": "m", "prompt": "abc", "n": 2, "seed": 2 * n}) for n in range(5)]
    source, out = write_lines(tmp_path / "p.jsonl", *requests), tmp_path / "a.jsonl"
    with pytest.raises(SettingError, match=r"3 prompts in a row failed.*three workers died"):
        run(EchoEngine(toy, fails=lambda request: request.seed % 2 == 0), source, out, max_batch_size=1)
    assert not out.exists()


def is_long(request):
    return len(request.prompt_ids) > 60


@pytest.fixture
def hundred(tmp_path):
    """A file of 60 short prompts after 40 long ones."""
    return write_lines(tmp_path / "p.jsonl", *[{"prompt": "a" * (100 - n)} for n in range(100)])


def test_bad_prompts_do_not_block_good_ones_in_the_next_run(toy, tmp_path, hundred):
    out = tmp_path / "a.jsonl"
    with pytest.raises(SettingError, match=f"{MAX_FAILURES} prompts in a row failed"):
        run(EchoEngine(toy, fails=is_long), hundred, out)
    kept = json.loads((tmp_path / "a.jsonl.run.json").read_text())["failures"]
    assert kept == {str(index): "three workers died" for index in range(MAX_FAILURES)}
    order = []

    class Noting(EchoEngine):
        def reply(self, key, request):
            order.append(key[0])
            return super().reply(key, request)

    summary = run(Noting(toy, fails=is_long), hundred, out)
    assert order == [*range(MAX_FAILURES, 100), *range(MAX_FAILURES)]
    assert (summary.answered, summary.failed) == (60, 40)
    assert "failures" not in json.loads((tmp_path / "a.jsonl.run.json").read_text())
    assert [line["failed"] for line in read_lines(out)] == ["three workers died"] * 40 + [None] * 60


def test_failures_that_were_not_the_prompts_fault_are_answered_by_the_next_run(toy, tmp_path, hundred):
    out = tmp_path / "a.jsonl"
    with pytest.raises(SettingError):
        run(EchoEngine(toy, fails=lambda request: True), hundred, out)
    assert not out.exists()
    assert run(EchoEngine(toy), hundred, out).answered == 100


def test_failures_are_kept_when_the_run_is_interrupted(toy, tmp_path, hundred):
    def interrupt(request):
        if len(request.prompt_ids) == 95:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        run(EchoEngine(toy, fails=interrupt), hundred, tmp_path / "a.jsonl", max_batch_size=1)
    kept = json.loads((tmp_path / "a.jsonl.run.json").read_text())["failures"]
    assert [*kept] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(("limit", "failed"), [(39, None), ("39%", None), (40, 40), ("40%", 40), ("100%", 40)])
def test_the_number_of_failures_can_be_limited(toy, tmp_path, hundred, limit, failed):
    engine, out = EchoEngine(toy, fails=is_long), tmp_path / "a.jsonl"
    if failed is None:
        with pytest.raises(SettingError, match="40 prompts failed, the last one with: three workers died"):
            run(engine, hundred, out, max_failures=limit, max_batch_size=1)
        return
    assert run(engine, hundred, out, max_failures=limit).failed == failed


def test_without_failures_allowed_the_first_one_stops_the_run(toy, tmp_path, hundred):
    engine = EchoEngine(toy, fails=is_long)
    with pytest.raises(SettingError, match=r"^1 prompt failed"):
        run(engine, hundred, tmp_path / "a.jsonl", max_failures=0, max_batch_size=1)
    assert engine.num_requests == 1


@pytest.mark.parametrize("limit", [-1, "101%", "many", "", "%", "5 %%", True, 2.5, "1e3", "nan%"])
def test_other_limits_are_rejected(tmp_path, hundred, limit):
    with pytest.raises(SettingError, match=r"max_failures=.*give a number, or a share such as 5%"):
        Batch(hundred, tmp_path / "a.jsonl", name="m", max_failures=limit)


def test_a_few_failures_are_written(tmp_path):
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "zzz"}] * 3)
    found, summary = answer(Poisoned(), source, tmp_path / "a.jsonl")
    assert summary.failed == 3
    assert all(line["failed"] for line in found)


def test_a_recipe_that_cannot_run_is_rejected_before_anything_is_written(toy, tmp_path):
    source = write_lines(tmp_path / "p.jsonl", {"prompt": "abc"})
    with pytest.raises(SettingError):
        answer(toy, source, tmp_path / "a.jsonl", recipe=FIVE.with_choices(cache="dual"))
    assert not (tmp_path / "a.jsonl").exists()


def test_a_tokenizer_that_raises_fails_the_line(tmp_path):
    class Halves(Letters):
        def encode(self, text):
            if text == "bad":
                raise KeyError("no such word")
            return super().encode(text)

        def decode(self, ids, *, skip_special=True):
            return "\ud800"  # half a character

    class Broken(Toy):
        tokenizer = Halves()

    source = write_lines(tmp_path / "p.jsonl", {"prompt": "bad"}, {"prompt": "good"})
    found, _ = answer(Broken(), source, tmp_path / "a.jsonl")
    assert "could not be tokenized (KeyError: 'no such word')" in found[0]["failed"]
    assert found[1]["text"] == "?", found[1]["failed"]
