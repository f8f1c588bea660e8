from __future__ import annotations

import json

import pytest
import torch

import lastword
from lastword.canvas.canvas import Canvas
from lastword.canvas.tokens import TokenIds
from lastword.decoding.forward import TokenCost
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import CapacityError, NumericError, PromptError, SettingError
from lastword.models.adapter import Adapter
from lastword.models.toy import Toy
from lastword.policies.unmask.rule import AtRandom, MostConfident
from lastword.recipe.recipe import Recipe
from lastword.survival.interpretation import Hazard

IDS = [5, 42, 17, 100, 63]


def run(model, prompt, **settings):
    plain = {"length": "fixed:6", "unmask": MostConfident()}
    return lastword.generate(model, prompt, **{**plain, **settings})


class Chatty(Toy):
    """A toy whose tokenizer has a chat template: contents, one after the other."""

    class Tokenizer(type(Toy.tokenizer)):
        def chat(self, messages):
            return self.encode(" ".join(message["content"] for message in messages))

    tokenizer = Tokenizer()


@pytest.fixture
def saying():
    """A model that writes the given words in its answer, whatever stands there."""

    def build(*words, mask=6, end=7, turn_ends=(5,), prompt=2):
        ids = TokenIds(mask=mask, end=end, pad=end, vocab_size=8, turn_ends=turn_ends)

        def forward(tokens):
            said = torch.tensor([0] * prompt + list(words))[: tokens.shape[1]]
            logits = 9.0 * torch.nn.functional.one_hot(said, 8).float()
            return logits.expand(len(tokens), -1, -1)

        return Adapter(forward, ids)

    return build


# Prompts


def test_text_ids_and_a_tensor_are_the_same_prompt(toy):
    answers = [run(toy, prompt) for prompt in ("abc", [0, 1, 2], (0, 1, 2), torch.tensor([0, 1, 2]))]
    assert {answer.text for answer in answers} == {"defghi"}
    assert {tuple(answer.prompt) for answer in answers} == {(0, 1, 2)}


def test_messages_go_through_the_chat_template():
    message = {"role": "user", "content": "abc"}
    assert run(Chatty(), [message]).prompt == [0, 1, 2]
    assert run(Chatty(), [message, message]).prompt == [0, 1, 2, 26, 0, 1, 2]


def test_one_message_will_do_for_a_conversation():
    assert run(Chatty(), {"role": "user", "content": "abc"}).prompt == [0, 1, 2]


def test_a_batch_may_mix_kinds_of_prompt_and_answers_in_order():
    prompts = ["xyz", [0, 1, 2], torch.tensor([0]), [{"role": "user", "content": "ab"}]]
    answers = run(Chatty(), prompts)
    assert [answer.text for answer in answers] == [run(Chatty(), p).text for p in prompts]


def test_a_batch_of_one_is_a_list_and_one_prompt_is_not(toy):
    assert isinstance(run(toy, ["abc"]), list)
    assert not isinstance(run(toy, "abc"), list)
    assert len(run(toy, torch.tensor([[0, 1], [2, 3]]))) == 2


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_rows_of_a_batch_equal_their_solo_runs(name, request):
    model = request.getfixturevalue(name)
    prompts = [IDS, [9], [11, 12, 13, 14, 15, 16, 17, 18]]
    settings = {
        "length": lastword.Survival(40),
        "unmask": AtRandom(),
        "sampling": Sampling(temperature=0.8),
        "block": 7,
    }
    together = lastword.generate(model, prompts, seed=[4, 5, 6], **settings)
    for prompt, seed, row in zip(prompts, [4, 5, 6], together):
        alone = lastword.generate(model, prompt, seed=seed, **settings)
        assert row.canvas == alone.canvas
        assert row.cost == alone.cost
        assert row.probe_cost == alone.probe_cost


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ("", "empty"),
        ([""], "prompt 0 is empty"),
        (["abc", []], "prompt 1 is empty"),
        ([0, 99], "id 99, outside the vocabulary of 29"),
        ([-1], "id -1, outside"),
        ([0, 27, 1], "mask token"),
        ("Größe", "cannot encode"),
        ([{"role": "user", "content": "abc"}], "no chat template"),
    ],
)
def test_a_prompt_that_cannot_be_decoded_from_is_refused(toy, prompt, words):
    with pytest.raises(PromptError, match=words):
        run(toy, prompt)


@pytest.mark.parametrize("prompt", ["abc", [{"role": "user", "content": "abc"}]])
def test_text_needs_a_tokenizer(llada, prompt):
    with pytest.raises(PromptError, match=r"without a tokenizer.*token ids"):
        run(llada, prompt)


NO_PROMPTS = [
    "lastword.generate(toy, None)",
    "lastword.generate(toy, 5)",
    "lastword.generate(toy, torch.tensor(5))",
    "lastword.generate(toy, torch.ones(0, 2).long())",
    "lastword.generate(toy, torch.ones(1, 1, 2).long())",
    "lastword.generate(toy, torch.tensor([0.5, 1.0]))",
    "lastword.generate(toy, [True, False])",
    "lastword.generate(toy, [0, 1, 'c'])",
    "lastword.generate(toy, [['a', 'b']])",
    "next(lastword.decode(toy, [], Recipe()))",
    "next(lastword.decode(toy, torch.ones(0, 2).long(), Recipe()))",
    "next(lastword.decode(toy, [1, 2, 3], Recipe()))",
    "next(lastword.decode(toy, 'abc', Recipe()))",
]


def test_what_is_no_prompt_at_all_is_refused(in_plain_python):
    outcome = in_plain_python(NO_PROMPTS)
    assert outcome == dict.fromkeys(NO_PROMPTS, "PromptError")


LIKE_IDS = [
    "lastword.generate(toy, list(torch.tensor([0, 1])))",
    "lastword.generate(toy, __import__('numpy').array([0, 1]))",
    "lastword.generate(toy, list(__import__('numpy').array([0, 1])))",
    "lastword.generate(toy, range(3))",
    "next(lastword.decode(toy, torch.tensor([[0, 1], [2, 3]]), Recipe()))",
    "next(lastword.decode(toy, __import__('numpy').array([[0, 1], [2, 3]]), Recipe()))",
    "lastword.generate(toy, 'abc', seed=__import__('numpy').int64(3))",
]


def test_whole_numbers_of_other_libraries_are_ids_too(in_plain_python):
    assert in_plain_python(LIKE_IDS) == dict.fromkeys(LIKE_IDS, "no error")


# Settings


def test_choices_are_parts_or_their_names_and_override_the_recipe(toy):
    recipe = Recipe(length=lastword.Fixed(3), block=2)
    assert lastword.generate(toy, "abc", recipe=recipe).horizon == 3
    assert lastword.generate(toy, "abc", recipe=recipe, length="fixed:4").horizon == 4
    by_part = lastword.generate(toy, "abc", recipe=recipe, length=lastword.Fixed(4))
    assert by_part.horizon == 4


def test_an_unknown_choice_is_refused():
    with pytest.raises(SettingError, match=r"no setting 'lenght'.*length"):
        Recipe().with_choices(lenght="fixed:3")


WRONG = [
    "lastword.generate(toy, 'abc', block='2')",
    "lastword.generate(toy, 'abc', recipe=3)",
    "lastword.generate(toy, 'abc', sampling={'temperature': 1})",
    "lastword.generate(toy, 'abc', seed='x')",
    "lastword.predict_length(toy, 'abc', limit=0)",
    "lastword.predict_length(toy, 'abc', ends='never')",
    "next(lastword.decode(toy, [[1], [2]], Recipe(), generators=lastword.RowGenerators([0])))",
]


def test_settings_of_the_wrong_kind_are_refused(in_plain_python):
    assert in_plain_python(WRONG) == dict.fromkeys(WRONG, "SettingError")


def test_seeds_repeat_and_row_i_takes_seed_plus_i(toy):
    settings = {"length": "fixed:20", "sampling": Sampling(temperature=3.0)}
    one, other = (lastword.generate(toy, "abc", seed=seed, **settings) for seed in (3, 4))
    assert one.tokens == lastword.generate(toy, "abc", seed=3, **settings).tokens
    assert one.tokens != other.tokens
    both = lastword.generate(toy, ["abc", "abc"], seed=3, **settings)
    assert [answer.tokens for answer in both] == [one.tokens, other.tokens]


def test_one_seed_per_prompt_or_an_error(toy):
    with pytest.raises(SettingError, match="3 seeds were given for 2 prompts"):
        run(toy, ["abc", "b"], seed=[1, 2, 3])


@pytest.mark.parametrize(
    ("length", "cap", "horizon"),
    [("fixed:9", 3, 3), ("fixed:9", 9, 9), ("fixed:9", 10**12, 9), ("survival:20", 2, 2), ("default:20", 2, 2)],
)
def test_max_new_tokens_caps_an_answer_of_any_length(toy, length, cap, horizon):
    answer = lastword.generate(toy, "abc", length=length, max_new_tokens=cap)
    assert (answer.horizon, len(answer.tokens)) == (horizon, horizon)
    assert [*lastword.stream(toy, "abc", length=length, max_new_tokens=cap)][-1].text == answer.text


def test_max_new_tokens_may_be_given_per_prompt(toy):
    answers = run(toy, ["abc"] * 3, max_new_tokens=[2, None, 4])
    assert [answer.text for answer in answers] == ["de", "defghi", "defg"]
    steps = lastword.decode(toy, [[0, 1, 2]] * 2, Recipe(length=lastword.Fixed(6)), max_new_tokens=[2, None])
    assert {row.request_id: row.horizon for step in steps for row in step.finished} == {0: 2, 1: 6}
    assert run(toy, "abc", max_new_tokens=None).text == run(toy, "abc", max_new_tokens=[None]).text == "defghi"


@pytest.mark.parametrize(
    ("cap", "words"),
    [
        (0, "max_new_tokens must be a whole number, 1 or more"),
        (True, "max_new_tokens=True"),
        (2.0, "a whole number, or a list with one per prompt"),
        ("5", "a whole number, or a list with one per prompt"),
        ([5], "1 max_new_tokens were given for 2 prompts; give one each"),
        ([5, 0], r"max_new_tokens=0\) was given"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_a_cap_that_cannot_be_is_refused(toy, cap, words):
    with pytest.raises(SettingError, match=words):
        run(toy, ["abc"] * 2, max_new_tokens=cap)
    with pytest.raises(SettingError, match=words):
        lastword.decode(toy, [[0, 1, 2]] * 2, max_new_tokens=cap)


@pytest.mark.parametrize(
    ("settings", "sampling"),
    [
        ({"temperature": 2.0}, Sampling(temperature=2.0)),
        ({"temperature": 2.0, "top_p": 0.5}, Sampling(temperature=2.0, top_p=0.5)),
        ({"temperature": 2.0, "top_k": 3}, Sampling(temperature=2.0, top_k=3)),
        ({"temperature": 0.0}, Sampling()),
    ],
    ids=str,
)
def test_sampling_settings_replace_those_of_the_recipe(toy, settings, sampling):
    for recipe in (Recipe(length=lastword.Fixed(20)), Recipe(length=lastword.Fixed(20), sampling=Sampling(9.0))):
        answer = lastword.generate(toy, "abc", recipe=recipe, seed=4, **settings)
        assert answer.recipe.sampling == sampling
        expected = lastword.generate(toy, "abc", recipe=recipe, sampling=sampling, seed=4)
        assert answer.tokens == expected.tokens
        steps = lastword.decode(toy, [[0, 1, 2]], recipe, seed=4, **settings)
        (row,) = [row for step in steps for row in step.finished]
        assert row.canvas.answer_ids(0) == expected.canvas


def test_a_sampling_setting_that_is_not_given_stays_the_recipe_s(toy):
    recipe = Recipe(length=lastword.Fixed(4), sampling=Sampling(temperature=2.0, top_k=3, guidance=0.5))
    found = lastword.generate(toy, "abc", recipe=recipe, top_p=0.5).recipe.sampling
    assert found == Sampling(temperature=2.0, top_k=3, top_p=0.5, guidance=0.5)


def test_temperature_0_takes_the_most_likely_token_whatever_the_recipe_filters(toy):
    recipe = Recipe(length=lastword.Fixed(4), sampling=Sampling(temperature=2.0, top_k=3, top_p=0.5))
    assert lastword.generate(toy, "abc", recipe=recipe, temperature=0.0).recipe.sampling == Sampling()
    drawn = Recipe(length=lastword.Fixed(4), sampling=Sampling(temperature=2.0, top_k=3, score="draw"))
    found = lastword.generate(toy, "abc", recipe=drawn, temperature=0.0).recipe.sampling
    assert found == Sampling(top_k=3, score="draw")  # its rules compare the filtered distribution


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_p": 0.5}, "give a temperature above 0"),
        ({"top_k": 3}, "give a temperature above 0"),
        ({"temperature": -1}, "temperature must be a number at least 0"),
        ({"temperature": "1"}, "temperature must be a number"),
        ({"temperature": 0, "top_p": 5}, "top_p must be a number above 0 and at most 1"),
        ({"temperature": 1, "top_k": 0}, "top_k must be a whole number, 1 or more"),
        ({"temperature": torch.ones(2)}, "temperature must be a number"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_a_sampling_setting_that_cannot_be_is_refused(toy, settings, words):
    for call in (
        lambda: run(toy, "abc", **settings),
        lambda: lastword.stream(toy, "abc", **settings),
        lambda: lastword.decode(toy, [[0, 1, 2]], **settings),
    ):
        with pytest.raises(SettingError, match=words):
            call()


def test_decode_takes_seeds_like_generate(toy):
    recipe = Recipe(length=lastword.Fixed(20), sampling=Sampling(temperature=3.0))
    for seed in (3, [3, 9]):
        steps = lastword.decode(toy, [[0, 1, 2]] * 2, recipe, seed=seed)
        rows = {row.request_id: row.canvas.answer_ids(0) for step in steps for row in step.finished}
        answers = lastword.generate(toy, ["abc"] * 2, recipe=recipe, seed=seed)
        assert [rows[0], rows[1]] == [answer.canvas for answer in answers]


# Room


def test_more_than_the_models_positions_is_refused_unless_allowed(llada):
    with pytest.raises(CapacityError, match=r"horizon 92 \+ prompt 5 exceeds .*96.* to 91"):
        lastword.generate(llada, IDS, length="fixed:92", unmask=MostConfident(lastword.EqualShares(46.0)))
    long = lastword.generate(
        llada, IDS, length="fixed:92", unmask=MostConfident(lastword.EqualShares(46.0)), exceed_max_seq_len=True
    )
    assert len(long.canvas) == 92


def test_the_limit_of_the_probe_counts_as_well(llada):
    with pytest.raises(CapacityError, match="lower the length limit to 91"):
        lastword.generate(llada, IDS, length="survival:92")
    with pytest.raises(CapacityError):
        lastword.predict_length(llada, IDS, limit=92)


def test_a_limit_that_was_left_out_fits_behind_the_prompt(llada):
    assert lastword.predict_length(llada, IDS).slots == 91
    assert lastword.generate(llada, IDS, length="survival").recipe.length == lastword.Survival(91)


def test_a_prompt_longer_than_the_model_says_so(llada):
    with pytest.raises(CapacityError, match="the prompt alone is too long"):
        run(llada, [1] * 97)


# Answers


def test_nan_logits_are_refused(ids):
    model = Adapter(lambda tokens: torch.full((*tokens.shape, 8), torch.nan), ids)
    with pytest.raises(NumericError, match="NaN"):
        run(model, [1, 2])
    with pytest.raises(NumericError, match="NaN"):
        lastword.predict_length(model, [1, 2], limit=4)


def test_a_padded_head_proposes_no_id_beyond_the_vocabulary(ids):
    def padded(tokens):
        logits = torch.zeros(*tokens.shape, ids.vocab_size + 3)
        logits[..., 3], logits[..., ids.vocab_size :] = 5, 9
        return logits

    assert run(Adapter(padded, ids), [1, 2], length="fixed:4").tokens == [3, 3, 3, 3]


def test_a_list_of_one_tensor_is_a_batch(ids):
    model = Adapter(lambda tokens: torch.eye(8)[3].expand(*tokens.shape, 8), ids)
    [answer] = run(model, [torch.tensor([1])])
    assert answer.prompt == [1]


def test_an_answer_stops_at_its_first_end_token(saying):
    answer = run(saying(1, 2, 7, 3, 7, 7), [0, 0])
    assert answer.tokens == [1, 2]
    assert answer.canvas == [1, 2, 7, 3, 7, 7]
    assert answer.finish is lastword.Finish.ENDED


def test_either_end_token_ends_an_answer(saying):
    assert run(saying(1, 2, 5, 7, 7, 7), [0, 0]).tokens == [1, 2]
    assert run(saying(1, 7, 2, 5, 7, 7), [0, 0]).tokens == [1]
    assert run(saying(5, 1, 1, 1, 1, 1), [0, 0]).tokens == []


def test_a_full_canvas_without_an_end_is_truncated(saying):
    answer = run(saying(1, 2, 3, 4, 1, 2), [0, 0])
    assert answer.finish is lastword.Finish.TRUNCATED
    assert answer.tokens == [1, 2, 3, 4, 1, 2]


def test_masks_the_model_insists_on_are_left_only_where_it_may_propose_them(saying):
    model, allowed = saying(1, 6, 2, 6, 1, 1), Sampling(propose_mask=True)
    assert run(model, [0, 0], sampling=allowed).finish is lastword.Finish.MASKS_LEFT
    assert run(model, [0, 0], sampling=allowed).canvas == [1, 6, 2, 6, 1, 1]
    assert run(model, [0, 0]).finish is lastword.Finish.TRUNCATED


def test_an_answer_with_masks_before_its_end_did_not_simply_end(saying):
    answer = run(saying(1, 6, 2, 7, 7, 7), [0, 0], sampling=Sampling(propose_mask=True))
    assert answer.finish is lastword.Finish.MASKS_LEFT


def test_a_generation_reports_what_it_cost(toy):
    answer = lastword.generate(toy, "abc", length="survival:20")
    assert answer.probe_cost == TokenCost(1, 23, 23**2)
    width = 3 + answer.horizon
    assert answer.cost.forward_passes == answer.horizon
    assert answer.cost.tokens_computed == answer.horizon * width
    assert answer.lengths.slots == 20
    assert answer.seconds > 0


def test_guidance_counts_both_branches(llada):
    plain = run(llada, IDS)
    guided = run(llada, IDS, sampling=Sampling(guidance=1.0))
    assert guided.cost.forward_passes == plain.cost.forward_passes
    assert guided.cost.tokens_computed == 2 * plain.cost.tokens_computed


def test_guidance_works_on_a_model_that_rules_tokens_out(toy):
    # The toy gives the mask probability 0; minus infinity minus itself is no number.
    assert run(toy, "abc", sampling=Sampling(guidance=1.0)).text == "defghi"


def test_rows_that_finish_early_stop_paying(llada):
    answers = lastword.generate(llada, [IDS, IDS[:2]], length=lastword.Survival(40))
    for answer in answers:
        assert answer.cost.forward_passes == answer.horizon


def test_a_generation_is_json(toy):
    data = json.loads(json.dumps(lastword.generate(toy, "abc", length="survival:9").to_data()))
    assert data["text"] == "defghijkl"[: data["horizon"]]
    assert data["finish"] == "truncated"
    assert data["prompt_tokens"] == 3
    fixed = run(toy, "abc").to_data()
    assert fixed["expected_length"] is None


def test_predict_length_is_one_row_per_prompt(toy):
    lengths = lastword.predict_length(toy, ["abc", "b"], limit=30, interpretation=Hazard())
    expected = (1 - 0.95**30) / 0.05
    assert lengths.mean.tolist() == pytest.approx([expected] * 2)


def test_of_one_prompt_a_predicted_length_is_a_number(toy):
    for prompt in ("abc", [1, 2]):
        lengths = lastword.predict_length(toy, prompt, limit=30)
        assert lengths.mean.shape == lengths.quantile(0.9).shape == lengths.tail.shape == ()
        assert isinstance(lengths.explanation, str)
        alone = lastword.predict_length(toy, [prompt], limit=30)
        assert alone.mean.tolist() == [lengths.mean.item()]


def test_a_predicted_length_is_what_generate_uses(llada):
    lengths = lastword.predict_length(llada, IDS, limit=40, interpretation=Hazard())
    answer = lastword.generate(llada, IDS, length="survival:40")
    assert answer.lengths.mean.item() == lengths.mean.item()
    assert answer.horizon == int(lengths.mean.ceil())


# Hooks


def test_the_logits_hook_sees_every_pass_and_its_answer_counts(toy):
    steps = []

    def ban_e(step, canvas, columns, logits):
        steps.append(step)
        assert logits.shape[:2] == columns.index[columns.rows].shape
        changed = logits.clone()
        changed[..., 4] = -torch.inf
        return changed

    answer = run(toy, "abc", hooks=lastword.Hooks(logits=ban_e))
    assert steps == list(range(6))
    assert 4 not in answer.tokens


def test_the_probe_does_not_go_through_the_hooks(toy):
    def never_ends(step, canvas, columns, logits):
        changed = logits.clone()
        changed[..., toy.ids.end] = -torch.inf
        return changed

    hooked = lastword.generate(toy, "abc", length="survival:9", hooks=lastword.Hooks(logits=never_ends))
    predicted = lastword.predict_length(toy, "abc", limit=9, interpretation=Hazard())
    assert hooked.lengths.mean.item() == predicted.mean.item()


def test_the_tokens_hook_is_called_before_and_after_and_may_rewrite_the_answer(toy):
    steps = []

    def always_z(step, canvas):
        steps.append(step)
        tokens = canvas.tokens.clone()
        tokens[:, canvas.start] = 25
        tokens[:, 0] = 9  # a prompt column: must not stick
        return tokens

    answer = run(toy, "abc", hooks=lastword.Hooks(tokens=always_z))
    assert steps == [None, 0, 1, 2, 3, 4]
    assert answer.canvas[0] == 25
    assert answer.prompt == [0, 1, 2]


def test_a_tokens_hook_that_leaves_nothing_to_decode_is_refused(toy):
    hooks = lastword.Hooks(tokens=lambda step, canvas: torch.full_like(canvas.tokens, 25))
    with pytest.raises(SettingError, match="leave some masks"):
        run(toy, "abc", hooks=hooks)


WRONG_HOOKS = [
    "lastword.generate(toy, 'abc', hooks=lastword.Hooks(tokens=lambda step, canvas: canvas.tokens[:, :2]))",
    "lastword.generate(toy, 'abc', hooks=lastword.Hooks(tokens=lambda step, canvas: None))",
    "lastword.generate(toy, 'abc', hooks=lastword.Hooks(logits=lambda step, canvas, columns, x: None))",
    "lastword.generate(toy, 'abc', hooks=lastword.Hooks(logits=lambda step, canvas, columns, x: x[:, :1]))",
]


def test_a_hook_that_returns_something_else_is_refused(in_plain_python):
    assert in_plain_python(WRONG_HOOKS) == dict.fromkeys(WRONG_HOOKS, "SettingError")


# Steps


def test_decode_yields_one_step_per_pass_and_fills_only_masks(toy):
    steps = list(lastword.decode(toy, [[0, 1, 2], [5]], Recipe(length=lastword.Fixed(5))))
    assert len(steps) == 5
    before = Canvas.blank([[0, 1, 2], [5]], torch.tensor([5, 5]), toy.ids)
    for number, step in enumerate(steps):
        assert step.clock.step.tolist() == [number, number]
        changed = step.canvas.tokens != before.tokens
        assert not (changed & ~before.masked).any()
        assert torch.equal(changed, step.chosen)
        before = step.canvas


def test_decode_repeats_with_equal_dice(llada):
    recipe = Recipe(length=lastword.Fixed(8), unmask=AtRandom(), sampling=Sampling(temperature=1.0))
    runs = [
        [step.canvas.tokens for step in lastword.decode(llada, [IDS], recipe, generators=RowGenerators([seed]))][-1]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_public_names_can_be_found_by_completion():
    assert set(lastword.__all__) <= set(dir(lastword))


def test_functions_keep_their_names_beside_modules_of_the_same_name():
    import lastword.api
    import lastword.decoding.loop

    assert callable(lastword.generate)
    assert callable(lastword.decode)


def test_a_reading_may_be_named(toy):
    named, made = (lastword.predict_length(toy, "abc", interpretation=r) for r in ("hazard", lastword.Hazard()))
    assert named.mean.item() == made.mean.item()
    with pytest.raises(lastword.LastwordError, match="there is no interpretation called 'tea'"):
        lastword.predict_length(toy, "abc", interpretation="tea")


def test_what_is_no_model_is_told_what_one_is(in_plain_python):
    wrong = ['lastword.generate(3, "abc")', 'lastword.predict_length(None, "abc")']
    assert in_plain_python(wrong) == dict.fromkeys(wrong, "SettingError")


def test_a_model_may_be_named(toy):
    named = lastword.generate("toy", "abc", length="fixed:5")
    assert named.text == lastword.generate(toy, "abc", length="fixed:5").text
    assert lastword.predict_length("toy", "abc").mean == lastword.predict_length(toy, "abc").mean
    with pytest.raises(lastword.LastwordError, match="did you mean 'toy'"):
        lastword.generate("toyy", "abc")
