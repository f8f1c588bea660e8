"""Runs of earlier versions are resumed."""

import json

from lastword.recipe.recipe import Recipe
from tests.batch.batches import EchoEngine, read_lines, run, write_lines

# A run of 0.1.0 after its first prompt.
OLD_FACTS = {
    "run": "9c13ac438dca", "lastword": "0.1.0", "model": "m", "weights": "e3b0c44298fc1c14",
    "dtype": "float32", "seed": 3, "chat": False, "form": "lines",
    "sha256": "598dbea264bcb1123d56c3666b0b7b711244c5f38953a8c676c12f110e34cc52",
    "recipe": {
        "length": {
            "name": "stop-at-end",
            "length": {
                "name": "grow-when-full", "by": 32, "limit": 64,
                "length": {
                    "name": "survival", "limit": 64, "estimate": {"name": "mean"}, "ends": "document",
                    "reading": {"name": "auto"},
                },
            },
        },
        "unmask": {"name": "threshold", "threshold": 0.97, "pace": None},
        "commit": {"name": "never"},
        "cache": {"name": "none"},
        "block": 32,
        "sampling": {
            "name": "sampling", "temperature": 0.0, "top_p": None, "top_k": None, "score": "model",
            "guidance": 0.0, "forbid_end": False, "end_last": False, "propose_mask": False,
        },
    },
}  # fmt: skip
OLD_LINE = {
    "index": 0, "id": None, "text": "defg", "failed": None, "finish": "truncated", "prompt_tokens": 3,
    "tokens": 4, "horizon": 11, "expected_length": 10.4, "tail": 0.0, "passes": 65, "columns": 3331,
    "seconds": 0.96, "seed": 3, "shortened": False, "run": "9c13ac438dca",
}  # fmt: skip


def test_a_run_of_an_earlier_version_is_resumed(toy, tmp_path):
    source = tmp_path / "p.jsonl"
    source.write_bytes(b'{"prompt": "abc"}\n{"prompt": "hello"}\n')
    (tmp_path / "a.jsonl.run.json").write_text(json.dumps(OLD_FACTS))
    write_lines(tmp_path / "a.jsonl", OLD_LINE)
    engine = EchoEngine(toy)
    summary = run(engine, source, tmp_path / "a.jsonl", recipe=Recipe.named("fast"), seed=3)
    assert (engine.num_requests, summary.before, summary.answered) == (1, 1, 2)
    first, second = read_lines(tmp_path / "a.jsonl")
    assert first == OLD_LINE
    assert second["run"] == "9c13ac438dca"


def test_the_id_of_a_run_depends_on_facts_in_a_fixed_order(toy, tmp_path):
    source = write_lines(tmp_path / "p.jsonl", {"prompt": "abc"}, {"prompt": "hello"})
    run(EchoEngine(toy), source, tmp_path / "a.jsonl", recipe=Recipe.named("fast"), seed=3)
    assert json.loads((tmp_path / "a.jsonl.run.json").read_text())["run"] == "d995502e754a"
