"""lm-evaluation-harness from its own command line: the same answers and scores as `lastword eval`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lastword
import lastword.tasks
from lastword.evaluate.journal import read_records
from tests.evaluate.mirror import real, written
from tests.serve.conftest import serving

pytestmark = pytest.mark.full
pytest.importorskip("lm_eval", reason="needs the extra eval")
MODEL = "tiny-llada-base"


def run(*words, cwd):
    ended = subprocess.run(
        [sys.executable, "-m", *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stderr


def harness(folder, *words):
    """Run the harness's command line; return the answers and scores by task and sample."""
    run("lastword.evaluate.harness", *words, "--log_samples", "--output_path", "harness", cwd=folder)
    answers = {}
    for path in (folder / "harness").rglob("samples_*.jsonl"):
        for line in path.read_text().splitlines():
            sample = json.loads(line)
            if sample["filter"] in ("none", "strict-match"):
                task = path.name.removeprefix("samples_").partition("_20")[0]
                score = sample.get("exact_match", sample.get("score"))
                answers[task.removeprefix("tiny_"), sample["doc_id"]] = (sample["resps"][0][0], score)
    return answers


def own(folder, *words):
    """Run `lastword eval`; return the same."""
    run("lastword", "eval", "--model", MODEL, "--recipe", "fast", "--out", "own", *words, cwd=folder)
    return {(record.task, record.index): (record.text, record.score) for record in read_records(folder / "own")}


ARGUMENTS = ("--model", "lastword", "--model_args", f"pretrained={MODEL},recipe=fast", "--batch_size", "2")


def test_embedded_tasks_get_the_answers_and_scores_of_lastword_eval(tmp_path):
    theirs = harness(tmp_path, *ARGUMENTS, "--tasks", "tiny_algebra,tiny_complete_function", "--limit", "3")
    assert theirs == own(tmp_path, "--tasks", "algebra,complete_function", "--limit", "3")
    assert len(theirs) == 6


def test_gsm8k_from_local_files_gets_the_answers_and_scores_of_lastword_eval(tmp_path):
    import lm_eval

    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "tasks").mkdir()
    for split in ("train", "test"):
        rows = real("gsm8k/main", split) or written("gsm8k/main", split)
        lines = [json.dumps(row) for row in list(rows)[:8]]
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join(lines))
    (tmp_path / "tasks" / "local.yaml").write_text(
        f"include: {Path(lm_eval.__file__).parent}/tasks/gsm8k/gsm8k.yaml\n"
        "task: gsm8k_local\ndataset_path: json\ndataset_name: null\n"
        "dataset_kwargs: {data_files: {train: gsm8k/train.jsonl, test: gsm8k/test.jsonl}}\n"
    )
    few = ("--tasks", "gsm8k_local", "--limit", "2")
    theirs = harness(tmp_path, *ARGUMENTS, *few, "--include_path", "tasks", "--num_fewshot", "0")
    assert theirs == own(tmp_path, *few, "--include-path", "tasks", "--shots", "0")
    assert len(theirs) == 2
    by_data = own(tmp_path, "--tasks", "gsm8k", "--limit", "2", "--data", "gsm8k=gsm8k", "--shots", "0")
    assert {index: by_data["gsm8k", index] for index in (0, 1)} == {
        index: theirs["gsm8k_local", index] for index in (0, 1)
    }


def test_the_harness_talks_to_a_server(tmp_path):
    model = lastword.load("tiny-llada-instruct", device="cpu")
    with serving(model, name="tiny-llada-instruct") as server:
        address = f"model=tiny-llada-instruct,base_url={server.url}/v1/chat/completions"
        chat = ("--model", "local-chat-completions", "--model_args", address, "--apply_chat_template")
        answers = harness(tmp_path, *chat, "--tasks", "tiny_algebra", "--limit", "2")
    alone = lastword.generate(model, first_prompts(2), recipe="careful")
    assert [text for text, _ in answers.values()] == [answer.text for answer in alone]


def first_prompts(count):
    return [example.prompt for example in lastword.tasks.load_frozen("test", "algebra")[:count]]


def test_parts_of_an_imported_module_have_a_name(tmp_path):
    (tmp_path / "my_parts.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\n\nimport lastword\n\n\n@lastword.register\n"
        "@dataclass(frozen=True)\nclass MyRule(lastword.MostConfident):\n    name: ClassVar[str] = 'my-rule'\n"
    )
    words = ("--model", "lastword", "--tasks", "tiny_algebra", "--limit", "1")
    arguments = ("--model_args", f"pretrained={MODEL},recipe=fast,unmask=my-rule,length=fixed:4")
    run("lastword.evaluate.harness", *words, *arguments, "--import", "my_parts", cwd=tmp_path)


def test_an_unknown_model_argument_is_named(tmp_path):
    words = ("--model", "lastword", "--model_args", f"pretrained={MODEL},recipes=fast", "--tasks", "tiny_algebra")
    with pytest.raises(AssertionError, match="has no argument 'recipes'; did you mean recipe="):
        run("lastword.evaluate.harness", *words, "--limit", "1", cwd=tmp_path)
