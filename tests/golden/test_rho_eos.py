"""RhoEos, both signals, against runs of rho-EOS's own code: see PEERS.md.

Where the recorded canvas was cut to nothing there is nothing to compare with any more. From there on
ours is held to a replay of PEERS.md's words, row by row, in which a cut keeps what ours keeps; the
other rows show that the replay is right.
"""

import math
from functools import partial

import pytest
import torch

import lastword
from tests.golden.cases import checkpoint, peer_cases, recording

CASES = peer_cases("peers_rho_eos")
recorded = partial(recording, "peers_rho_eos")
ROWS = [(case, row) for case in CASES for row in range(case["batch"])]
SIGNALS = {"density": "density", "released_trailing_confidence": "released"}

# Rows whose recorded canvas was cut to nothing: from that pass on ours, which keeps a slot, differs.
CUT_TO_NOTHING = {("r08_batch_of_two", 1): 2, ("r13_shrinks_to_nothing", 0): 1}
# Rows that were done and yet resized up and down while another row of their batch was decoding.
RESIZED_WHEN_DONE = {("r12_density_batch", 0): 17, ("r12_density_batch", 1): 14}
RUNS: dict[str, list[lastword.Step]] = {}  # by case


def recipe_of(case) -> lastword.Recipe:
    s = case["settings"]
    return lastword.Recipe(
        length=lastword.RhoEos(
            initial=s["initial_gen_length"],
            limit=s["max_gen_length"],
            rho_low=s["low_density_threshold"],
            rho_high=s["high_density_threshold"],
            expansion_factor=s["expansion_factor"],
            scheduler=s["scheduler"],
            signal=SIGNALS[s["signal"]],
            eos_window=s["eos_check_tokens"],
        ),
        unmask=lastword.AboveThreshold(s["high_conf_threshold"]),
        block=s["block_length"],
    )


def run(case) -> list[lastword.Step]:
    if case["name"] not in RUNS:
        prompts = recorded()[f"{case['name']}.prompt"].tolist()
        model = checkpoint(case["model"])
        RUNS[case["name"]] = list(lastword.decode(model, prompts, recipe_of(case), exceed_max_seq_len=True))
    return RUNS[case["name"]]


def ours(case, row) -> list[list[int]]:
    """The row's answer before every pass it took part in, then as it ended."""
    steps = [step for step in run(case) if step.prediction.canvas.masked[row].any()]
    canvases = [steps[0].prediction.canvas, *(step.canvas for step in steps)]
    return [canvas.answer_ids(row) for canvas in canvases]


def theirs(case, row) -> list[list[int]]:
    """The row's answer before every pass of its batch, then as it ended."""
    name, first = case["name"], case["prompt_length"]
    trace, lengths = (recorded()[f"{name}.{part}"] for part in ("trace", "row_lengths"))
    canvases = [canvas[row, first : int(n[row])].tolist() for canvas, n in zip(trace, lengths)]
    end = first + case["final_length"][row]
    return [*canvases, recorded()[f"{name}.output"][row, first:end].tolist()]


def replayed(case, row) -> list[list[int]]:
    """The row's answer before every pass, then as it ended, if it were decoded alone."""
    s, mask, end = case["settings"], case["mask_id"], case["eos_id"]
    prompt = recorded()[f"{case['name']}.prompt"][row].tolist()
    answer, block, limit = [mask] * s["initial_gen_length"], s["block_length"], s["max_gen_length"]
    canvases, full = [answer], False
    while mask in answer:
        full = full or len(answer) >= limit
        tokens = torch.tensor([[*prompt, *answer]])
        read = torch.arange(len(prompt), tokens.shape[1])[None]
        chances = checkpoint(case["model"])(tokens, read)[0].softmax(-1)
        sure, best = (part.tolist() for part in chances.max(-1))
        masks = [slot for slot, token in enumerate(answer) if token == mask]
        window = [slot for slot in masks if slot // block == masks[0] // block]
        passing = [slot for slot in window if sure[slot] > s["high_conf_threshold"]]
        filled = list(answer)
        for slot in passing or [max(window, key=lambda slot: sure[slot])]:
            filled[slot] = best[slot]
        ending = [slot for slot in range(len(answer)) if best[slot] == end]
        if s["signal"] == "density":
            signal = sum(slot in masks for slot in ending) / len(masks)
        else:
            last = ending[-s["eos_check_tokens"] :]
            signal = sum(sure[slot] for slot in last) / s["eos_check_tokens"]
        by = 0 if full or len(canvases) > 64 else units(signal, s) * s["expansion_factor"]
        length = min(max(len(filled) + by, kept(filled, case)), limit)
        answer = [*filled, *[mask] * by][:length]
        canvases.append(answer)
    return canvases


def units(signal: float, s) -> int:
    """How many units the row grows, or shrinks where negative."""
    below, above = s["low_density_threshold"] - signal, signal - s["high_density_threshold"]
    if max(below, above) <= 0:
        return 0
    segment = math.ceil(max(below, above) / 0.1 - 1e-9)
    pace = {"const": 1, "linear": segment, "exp": 2 ** (segment - 1)}[s["scheduler"]]
    return min(pace, 8) * (1 if below > 0 else -1)


def kept(answer: list[int], case) -> int:
    """The slots ours does not cut: text up to its end token, the end once no mask precedes it, or one."""
    mask, end = case["mask_id"], case["eos_id"]
    text = answer[: answer.index(end)] if end in answer else answer
    if end in answer and mask not in text:
        return len(text) + 1
    return max([slot + 1 for slot, token in enumerate(text) if token != mask], default=1)


@pytest.mark.parametrize(("case", "row"), ROWS, ids=lambda part: str(part)[:30])
def test_every_pass_is_the_replayed_one(case, row):
    assert ours(case, row) == replayed(case, row)


@pytest.mark.parametrize(("case", "row"), ROWS, ids=lambda part: str(part)[:30])
def test_pass_by_pass(case, row):
    mine, recording, key = ours(case, row), theirs(case, row), (case["name"], row)
    if key in CUT_TO_NOTHING:
        alike = CUT_TO_NOTHING[key]
        assert mine[:alike] == recording[:alike]
        assert (recording[alike], mine[alike]) == ([], [case["mask_id"]])
        assert len(mine) > alike + 2  # ours goes on from that slot: the replay says how
    elif key in RESIZED_WHEN_DONE:
        done = RESIZED_WHEN_DONE[key]
        assert len(mine) == done + 1
        assert mine == recording[: done + 1]
        assert case["mask_id"] not in mine[-1]
    else:
        # A row that is done before the others of its batch stays as it is.
        assert mine == recording[: len(mine)]
        assert all(canvas == mine[-1] for canvas in recording[len(mine) :])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_number_of_passes(case):
    if case["batch"] == 1 and (case["name"], 0) not in CUT_TO_NOTHING:
        assert len(run(case)) == case["forward_calls"]
    assert run(case)[0].probe_cost.forward_passes.tolist() == [0] * case["batch"]


def test_what_the_recorded_crop_cut_was_an_end_token_behind_masks():
    """So ours cuts it as well: only text, and the end token that closes it, is kept."""
    case = next(case for case in CASES if case["name"].startswith("r07"))
    cut = [(before[len(after) :], before[: len(after)]) for before, after in zip(ours(case, 0), ours(case, 0)[1:])]
    mask, end = case["mask_id"], case["eos_id"]
    written = [(lost, kept) for lost, kept in cut if set(lost) - {mask}]
    assert len(written) == case["committed_tokens_cut_by_shrinking"]
    assert all(set(lost) <= {mask, end} and mask in kept for lost, kept in written)
