"""Training on a toy corpus, small enough for a laptop: every answer repeats its prompt's words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import lastword
from lastword.errors import CheckpointError, SettingError
from training import objective
from training.batches import Batches
from training.corpus import Examples, Frame, documents
from training.data import write
from training.muon import orthogonal
from training.run import Run
from training.settings import Body, Rate, Rows, Settings, read
from training.tokenizer import SPECIALS, config_of
from training.train import train

CPU = torch.device("cpu")
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "Ċ"]  # Ċ is a newline in byte-level spelling
KINDS = [(family, rows) for family in ("llada", "dream") for rows in ("packed", "padded")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are slower on two threads, and much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of single letters for each model, and a corpus of letters to repeat."""
    folder = tmp_path_factory.mktemp("recipe")
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(300):
        letters = rng.integers(0, 26, rng.integers(2, 6)).tolist()
        pairs.append(([*letters, 26], letters * int(rng.integers(1, 4))))
    examples = Examples.from_pairs(pairs)
    for family, specials in SPECIALS.items():
        write(folder / f"{family}.npz", {"train": examples, "validation": examples})
        core = Tokenizer(models.BPE({**{s: i for i, s in enumerate(LETTERS)}, **SPELLED}, []))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([AddedToken(t, special=True) for t in specials.tokens])
        for rows, name in (("packed", "base"), ("padded", "instruct")):
            home = folder / f"{family}-{rows}"
            home.mkdir()
            core.save(str(home / "tokenizer.json"))
            config = config_of(core, specials, instruct=name == "instruct")
            (home / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


SPELLED = {":": 27, "Q": 28, "Ġ": 29}  # what the recipe's own test message needs


def settings(folder: Path, family: str, rows_are: str, steps: int = 20) -> Settings:
    return Settings(
        name=f"{family}-{rows_are}",
        family=family,
        rows_are=rows_are,
        tokenizer=str(folder / f"{family}-{rows_are}"),
        corpus=str(folder / f"{family}.npz"),
        steps=steps,
        causal=0.2 if family == "dream" else 0.0,
        log_every=5,
        validate_every=10,
        body=Body(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=48, max_seq_len=128),
        rows=Rows(tokens=512, grain=8, canvas=24, smallest=4, widest=64),
        rate=Rate(warmup=4),
    )


def logged(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("family", "rows_are"), KINDS)
def test_the_loss_falls(folder: Path, tmp_path: Path, family: str, rows_are: str) -> None:
    run = Run(settings(folder, family, rows_are, steps=40), tmp_path, CPU)
    before = run.validate()
    train(run, 0, 40)
    assert run.validate() < 0.93 * before
    assert logged(tmp_path)[-1]["validation_loss"] == pytest.approx(run.validate(), abs=1e-4)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_resuming_changes_nothing(folder: Path, tmp_path: Path, family: str) -> None:
    recipe = settings(folder, family, "padded")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir(), halves.mkdir()
    through = Run(recipe, whole, CPU)
    train(through, 0, 20)
    train(Run(recipe, halves, CPU), 0, 10)
    second = Run(recipe, halves, CPU)
    train(second, second.resume(), 20)
    for name in ("weights", "average"):
        one, other = through.optimiser.state()[name], second.optimiser.state()[name]
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert logged(whole)[-1]["loss"] == logged(halves)[-1]["loss"]


def test_a_checkpoint_of_other_settings_is_refused(folder: Path, tmp_path: Path) -> None:
    recipe = settings(folder, "llada", "padded", steps=2)
    with pytest.raises(CheckpointError, match="start without --resume"):
        Run(recipe, tmp_path, CPU).resume()
    train(Run(recipe, tmp_path, CPU), 0, 2)
    with pytest.raises(SettingError, match="rows_are"):
        Run(settings(folder, "llada", "packed", steps=2), tmp_path, CPU).resume()


@pytest.mark.parametrize(("family", "rows_are"), KINDS)
def test_what_is_exported_loads_and_computes_the_same(folder: Path, tmp_path: Path, family: str, rows_are: str) -> None:
    run = Run(settings(folder, family, rows_are, steps=6), tmp_path, CPU)
    train(run, 0, 6)
    model = lastword.load(tmp_path, device="cpu")
    tokens = torch.randint(0, 26, (2, 12), generator=torch.Generator().manual_seed(0))
    tokens[:, 6:] = model.ids.mask
    network = run.optimiser.average
    aligned = network.head(network.norm(network.hidden(tokens)))
    if family == "dream":
        aligned = torch.cat((aligned[:, :1], aligned[:, :-1]), dim=1)
    read = torch.arange(12).expand(2, -1)
    scale = aligned.abs().max().item()
    torch.testing.assert_close(model(tokens, read), aligned, atol=0.02 * scale, rtol=0.02)
    assert model.ids.end == run.end
    assert model.ids.mask == run.mask
    assert lastword.generate(model, "abc\n", length=lastword.Fixed(8)).horizon == 8


def test_instruct_starts_from_base(folder: Path, tmp_path: Path) -> None:
    base = Run(settings(folder, "dream", "packed", steps=3), tmp_path, CPU)
    train(base, 0, 3)
    recipe = replace(settings(folder, "dream", "padded"), start=str(tmp_path))
    assert recipe.causal_steps == 0
    run = Run(recipe, tmp_path, CPU)
    run.begin()
    rounded = base.optimiser.average.head.weight.bfloat16().float()
    assert torch.equal(run.optimiser.network.head.weight, rounded)
    wider = replace(recipe, body=replace(recipe.body, hidden_size=48))
    with pytest.raises(SettingError, match="another shape"):
        Run(wider, tmp_path, CPU).begin()


def text_of(run: Run, row: torch.Tensor) -> str:
    return run.tokenizer.decode(row.tolist(), skip_special=False)


def test_padded_rows_are_framed_ended_and_filled(folder: Path, tmp_path: Path) -> None:
    shown = {}
    for family in ("llada", "dream"):
        run = Run(settings(folder, family, "padded"), tmp_path, CPU)
        texts = run.train.documents
        width = int(texts.length[0]) + 3
        shown[family] = text_of(run, texts.rows(torch.tensor([0]), width)[0])
        content = run.tokenizer.chat([{"role": "user", "content": "abc\n"}])
        frame = Frame.of(run.settings, run.tokenizer)
        assert content[: len(frame.before)] == list(frame.before)
        assert content[len(content) - len(frame.after) :] == list(frame.after)
    end = "<|endoftext|>"
    assert shown["llada"].endswith("<|eot_id|>" + end * 4)
    assert shown["dream"].endswith(end * 4)
    assert not shown["dream"].endswith(end * 5)


def test_packed_rows_run_into_the_next_document() -> None:
    examples = Examples.from_pairs([([1, 2], [3]), ([4], [5, 6])])
    texts = documents(examples, Frame(ends=(9,)), None, CPU)
    assert texts.rows(torch.tensor([0, 1]), 9).tolist() == [[1, 2, 3, 9, 4, 5, 6, 9, 1], [4, 5, 6, 9, 1, 2, 3, 9, 4]]


def test_frames_go_around_prompts_and_answers() -> None:
    examples = Examples.from_pairs([([1, 2, 7], [3]), ([4, 7], [5, 6])])
    frame = Frame(before=(20,), after=(21, 22), ends=(23, 9), trimmed=1)
    texts = documents(examples, frame, 9, CPU)
    assert texts.rows(torch.tensor([0, 1]), 10).tolist() == [
        [20, 1, 2, 21, 22, 3, 23, 9, 9, 9],
        [20, 4, 21, 22, 5, 6, 23, 9, 9, 9],
    ]
    assert texts.prompt.tolist() == [5, 4]


@pytest.mark.parametrize("shifted", [False, True])
def test_masks_fall_only_where_they_may(shifted: bool) -> None:
    tokens = torch.arange(10, 22).view(2, 6)
    fixed = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
    content = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]).bool()
    chance = torch.tensor([[1.0], [0.5]])
    generator = torch.Generator().manual_seed(0)
    batch = objective.masked(tokens, fixed, content, chance, 99, generator, shifted=shifted)
    hidden = batch.inputs == 99
    assert not (hidden & fixed).any()
    assert hidden[0].tolist() == [False, False, True, True, True, True]  # fill is masked too
    aligned = torch.roll(batch.weights, 1, dims=1) if shifted else batch.weights
    # Four content columns are free; each masked column weighs one over its chance of being masked.
    torch.testing.assert_close(aligned, hidden / chance / 4)
    wanted = torch.roll(batch.targets, 1, dims=1) if shifted else batch.targets
    assert (wanted[hidden] == tokens[hidden]).all()


def test_shifted_targets_by_hand() -> None:
    tokens, weights = torch.tensor([[5, 6, 7]]), torch.tensor([[0.0, 0.25, 0.75]])
    targets, moved = objective.ahead(tokens, weights)
    assert targets.tolist() == [[6, 7, 0]]
    assert moved.tolist() == [[0.25, 0.75, 0.0]]
    batch = objective.next_token(tokens, torch.tensor([[True, True, False]]))
    assert batch.causal
    assert batch.weights.tolist() == [[1.0, 0.0, 0.0]]


def test_the_first_column_of_a_shifted_row_is_never_masked() -> None:
    tokens = torch.zeros(4, 5, dtype=torch.long)
    nothing, everything = torch.zeros(4, 5).bool(), torch.ones(4, 5).bool()
    generator = torch.Generator().manual_seed(0)
    batch = objective.masked(tokens, nothing, everything, torch.ones(4, 1), 9, generator, shifted=True)
    assert (batch.inputs[:, 0] == 0).all()
    assert batch.weights.sum().item() == pytest.approx(1.0)


def test_a_prompt_is_never_masked_in_padded_rows(folder: Path, tmp_path: Path) -> None:
    run = Run(settings(folder, "llada", "padded"), tmp_path, CPU)
    texts = run.train.documents
    chosen = torch.arange(50)
    clean = texts.rows(chosen, 64)
    batch = run.train.batch(chosen, 64)
    prompt = torch.arange(64) < texts.prompt[chosen][:, None]
    assert torch.equal(batch.inputs[prompt], clean[prompt])
    fill = torch.arange(64) >= texts.length[chosen][:, None]
    assert (batch.weights[fill] > 0).any()
    assert (clean[fill] == run.end).all()


def test_most_packed_rows_show_their_first_prompt(folder: Path, tmp_path: Path) -> None:
    run = Run(settings(folder, "llada", "packed"), tmp_path, CPU)
    chosen = torch.arange(300)
    batch = run.train.batch(chosen, 32)
    prompt = torch.arange(32) < run.train.documents.prompt[chosen][:, None]
    shown = ((batch.inputs == run.mask) & prompt).sum(1) == 0
    assert 0.75 < shown.float().mean() < 0.95  # 0.8, and rows with few masks by chance


def test_some_packed_rows_show_all_their_prompts(folder: Path, tmp_path: Path) -> None:
    run = Run(settings(folder, "llada", "packed"), tmp_path, CPU)
    run.train.settings = replace(run.train.settings, answers_only=1.0)
    chosen = torch.arange(300)
    owner, place = run.train.documents.places(chosen, 32)
    assert owner[:, 0].tolist() == chosen.tolist()
    assert (owner[:, -1] != chosen).any()
    hidden = run.train.batch(chosen, 32).inputs == run.mask
    assert not (hidden & (place < 0)).any()
    assert hidden[place >= 0].float().mean() > 0.3


def test_places_by_hand() -> None:
    examples = Examples.from_pairs([([1, 2], [3]), ([4], [5, 6])])
    packed = documents(examples, Frame(ends=(9,)), None, CPU)
    owner, place = packed.places(torch.tensor([1]), 7)
    assert owner.tolist() == [[1, 1, 1, 1, 0, 0, 0]]
    assert place.tolist() == [[-1, 0, 1, 2, -2, -1, 0]]
    padded = documents(examples, Frame(ends=(9,)), 9, CPU)
    assert padded.places(torch.tensor([1]), 6)[1].tolist() == [[-1, 0, 1, 2, 3, 4]]


def test_rows_masked_from_a_cut_on_weigh_as_much_as_others() -> None:
    tokens = torch.arange(10, 22).view(2, 6)
    fixed = torch.tensor([[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]).bool()
    content = torch.ones(2, 6).bool()
    started = torch.arange(6).expand(2, -1) - torch.tensor([[3], [2]])
    batch = objective.masked(
        tokens, fixed, content, torch.ones(2, 1), 99, torch.Generator().manual_seed(0),
        shifted=False, started=started, ahead_of=torch.tensor([[True], [True]]), reach=2.0,
    )  # fmt: skip
    assert (batch.inputs == 99).tolist() == [[False] * 3 + [True] * 3, [False] * 2 + [True] * 4]
    torch.testing.assert_close(batch.weights.sum(1), torch.tensor([5 / 9, 4 / 9]))
    ratio = batch.weights[0, 4] / batch.weights[0, 3]
    assert ratio.item() == pytest.approx(np.exp(-1 / 2))


@pytest.mark.parametrize("rows_are", ["packed", "padded"])
def test_a_cut_does_not_tell_how_long_the_answer_is(folder: Path, tmp_path: Path, rows_are: str) -> None:
    batches: Batches = Run(settings(folder, "llada", rows_are), tmp_path, CPU).train
    texts = batches.documents
    same = torch.nonzero(texts.prompt == texts.prompt.mode().values)[:, 0]
    by_length = same[texts.length[same].argsort()]
    half = len(by_length) // 2
    nowhere = torch.zeros(half, 1).bool()
    cuts = []
    for chosen in (by_length[:half], by_length[-half:]):
        batches.generator.manual_seed(3)
        owner, place = texts.places(chosen, 40)
        cuts.append(batches._since_the_cut(chosen, owner, place, nowhere, 40))
    assert torch.equal(*cuts)


@pytest.mark.parametrize("rows_are", ["packed", "padded"])
def test_canvases_vary_and_hold_padded_answers(folder: Path, tmp_path: Path, rows_are: str) -> None:
    batches: Batches = Run(settings(folder, "llada", rows_are), tmp_path, CPU).train
    texts = batches.documents
    counts = np.zeros(len(texts.start), int)
    for width, drawer in zip(batches.widths, batches.drawers, strict=True):
        counts += np.bincount(drawer.numpy(), minlength=len(counts))
        if rows_are == "padded":
            assert (texts.length[drawer] <= width).all()
    assert (counts == 4).all()  # every document is seen as often as any other
    assert len(batches.widths) > 3
    assert batches.chance.sum() == pytest.approx(1)


def test_a_step_is_the_same_whenever_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    batches = Run(settings(folder, "llada", "packed"), tmp_path, CPU).train
    first = batches(7)
    batches(3)
    again = batches(7)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.weights, again.weights)


def test_ratios_are_spread_evenly() -> None:
    chance = objective.ratios(100, 0.05, 1e-3, torch.Generator().manual_seed(0))
    assert chance.min() >= 1e-3
    assert 3 <= (chance == 1).sum() <= 7
    gaps = chance[chance < 1].sort().values.diff()
    assert gaps.max() < 0.012


def test_muon_steps_are_orthogonal() -> None:
    x = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(orthogonal(x))
    assert singular.min() > 0.5
    assert singular.max() < 1.4


@pytest.mark.parametrize("name", ["llada-base", "llada-instruct", "dream-base", "dream-instruct"])
def test_the_four_recipes_fit_their_file(name: str) -> None:
    recipe = read(Path(__file__).parents[2] / "training" / f"tiny-{name}.toml", steps=5)
    assert (recipe.name, recipe.steps) == (f"tiny-{name}", 5)
    with torch.device("meta"):
        network = lastword.models.layers.BidirectionalTransformer(recipe.shape(960))
    size = 2 * sum(p.numel() for p in network.parameters())
    assert 9e6 < size < 12e6


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('name = "x"\nfamily = "llada"\nspeed = 9\n')
    with pytest.raises(SettingError, match="speed"):
        read(path)


COMPILED = """
import torch
from training import objective
from training.optimise import fresh
from training.settings import Body, Settings

body = Body(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=32)
settings = Settings("m", "dream", "padded", "", "", 1, body=body)
network, tokens = fresh(settings.shape(30), 1), torch.arange(24).view(2, 12)
given = (network, tokens, tokens, torch.ones(2, 12), False)
traced = torch.compile(objective.loss, dynamic=True, backend="eager", fullgraph=True)
torch.testing.assert_close(traced(*given), objective.loss(*given))
"""


@pytest.mark.full
def test_the_loss_compiles_and_says_the_same() -> None:
    """`--compile` traces the whole network. In a process of its own: checked types cannot be traced."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
