"""Datasets from files of the user's, and tasks from folders of the user's."""

import json

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import TaskError
from lastword.evaluate.harness import dataset_files, harness_tasks, local_dataset
from tests.evaluate.mirror import written

datasets = pytest.importorskip("datasets", reason="needs the package lm-eval")
NAVIGATE = "bbh_cot_fewshot_navigate"


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def no_hub(tmp_path, monkeypatch):
    """A cache of its own, and no hub."""
    from tests.evaluate.mirror import _refuse

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("socket.socket.connect", _refuse)


@pytest.fixture
def gsm8k(tmp_path):
    """A folder with a file per split."""
    for split in ("train", "test"):
        write_rows(tmp_path / "gsm8k" / f"{split}.jsonl", written("gsm8k/main", split))
    return tmp_path / "gsm8k"


@pytest.fixture
def bbh(tmp_path):
    """A folder with a file per configuration."""
    for name in ("navigate", "boolean_expressions"):
        write_rows(tmp_path / "bbh" / f"{name}.jsonl", written(f"bbh/{name}", "test"))
    return tmp_path / "bbh"


# The files of a dataset


@pytest.mark.parametrize(
    ("files", "source", "configuration", "found"),
    [
        (["test.jsonl"], "test.jsonl", None, {"test": "test.jsonl"}),
        (["mine.parquet"], "mine.parquet", "main", {"test": "mine.parquet"}),
        (["notes.txt"], "notes.txt", None, {}),
        (["train.jsonl", "test.jsonl"], ".", None, {"train": "train.jsonl", "test": "test.jsonl"}),
        (["train.jsonl", "test.jsonl"], ".", "main", {"train": "train.jsonl", "test": "test.jsonl"}),
        (["validation.csv"], ".", None, {"validation": "validation.csv"}),
        (["main/test.json", "test.jsonl"], ".", "main", {"test": "main/test.json"}),
        (["main/test.json", "test.jsonl"], ".", "other", {"test": "test.jsonl"}),
        (["navigate.jsonl", "snarks.jsonl"], ".", "navigate", {"test": "navigate.jsonl"}),
        (["navigate.jsonl", "snarks.jsonl"], ".", "ruin_names", {}),
        (["navigate.jsonl"], ".", None, {}),
        (["main/notes.txt", "test.jsonl.gz"], ".", "main", {}),
    ],
)
def test_the_files_of_a_dataset_are_found_by_split_or_configuration(tmp_path, files, source, configuration, found):
    for name in files:
        write_rows(tmp_path / name, [])
    files = dataset_files(tmp_path / source, configuration)
    assert {split: path.relative_to(tmp_path).as_posix() for split, path in files.items()} == found


# Tasks on local datasets


def test_a_folder_with_a_file_per_split_gives_the_samples_and_the_examples(gsm8k):
    (task,) = harness_tasks(["gsm8k"], data={"gsm8k": gsm8k})
    samples = task.samples()
    assert len(samples) == 4
    assert "Ada has 0 pears" in samples[0].prompt
    assert samples[0].prompt.count("Question:") == 5 + 1
    assert task.score(samples[:1] * 2, ["#### 1,000", "#### 7"]) == [1.0, 0.0]


def test_a_single_file_is_the_test_split(gsm8k):
    (task,) = harness_tasks(["gsm8k"], shots=0, data={"gsm8k": gsm8k / "test.jsonl"})
    assert len(task.samples()) == 4


def test_a_folder_with_a_file_per_configuration_gives_the_task_of_each(bbh):
    names = [NAVIGATE, "bbh_cot_fewshot_boolean_expressions"]
    tasks = harness_tasks(names, data=dict.fromkeys(names, bbh))
    assert [task.samples(1)[0].prompt.count("(navigate)") for task in tasks] == [1, 0]


@pytest.mark.parametrize(
    ("name", "files", "why"),
    [
        ("gsm8k", ["notes.txt"], r"has no data of openai/gsm8k, main; give one file, main\.jsonl or main\.json or"),
        (NAVIGATE, ["snarks.jsonl"], r"has no data of \S+, navigate; give one file, navigate\.jsonl or"),
        ("gsm8k", ["test.jsonl"], "gsm8k has 0 examples, and 5 shots were given; use fewer"),
        ("gsm8k", ["train.jsonl"], r"task 'gsm8k' .* needs the splits and fields of its dataset, which .* may lack"),
        (NAVIGATE, ["navigate.jsonl"], r"task '\S+' .* needs the splits and fields of its dataset, which .* may lack"),
    ],
)
def test_data_that_a_task_lacks_is_named(tmp_path, name, files, why):
    for file in files:
        write_rows(tmp_path / "data" / file, written("gsm8k/main", "test"))
    with pytest.raises(TaskError, match=why):
        harness_tasks([name], data={name: tmp_path / "data"})


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"there is no file or folder .*nowhere"):
        harness_tasks(["gsm8k"], data={"gsm8k": tmp_path / "nowhere"})


def test_only_the_named_task_reads_the_local_data(gsm8k, monkeypatch):
    def refuse(path, *_, **__):
        raise ConnectionError(f"{path} is on the hub")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    refused = rf"task '{NAVIGATE}' .*\(ConnectionError: \S+ is on the hub\); give a local copy with --data"
    with pytest.raises(TaskError, match=refused):
        harness_tasks([NAVIGATE], data={"gsm8k": gsm8k})


def test_datasets_are_loaded_as_usual_after_a_local_one(tmp_path):
    usual = datasets.load_dataset
    with local_dataset(None):
        assert datasets.load_dataset is usual
    with local_dataset(tmp_path):
        assert datasets.load_dataset is not usual
    assert datasets.load_dataset is usual
    with pytest.raises(TaskError), local_dataset(tmp_path):
        datasets.load_dataset("gsm8k", "main")
    assert datasets.load_dataset is usual


# Tasks of the user's


@pytest.fixture
def own_tasks(tmp_path):
    """A folder with a task."""
    rows = write_rows(tmp_path / "sums.jsonl", [{"ask": f"{n} + 1 =", "right": str(n + 1)} for n in range(3)])
    task = {
        "task": "my_sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}},
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{ask}}",
        "doc_to_target": "{{right}}",
        "metric_list": [{"metric": "exact_match"}],
        "generation_kwargs": {"until": ["."]},
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "my_sums.yaml").write_text(json.dumps(task))  # JSON is YAML
    return tmp_path / "tasks"


def test_a_task_of_a_folder_of_the_user_s_is_found_by_name(own_tasks):
    (task,) = harness_tasks(["my_sums"], include_path=[own_tasks])
    samples = task.samples()
    assert [sample.prompt for sample in samples] == ["0 + 1 =", "1 + 1 =", "2 + 1 ="]
    assert samples[0].stop == (".",)
    assert task.score(samples, ["1", "2", "4"]) == [1.0, 1.0, 0.0]


def test_a_folder_of_tasks_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"--include-path .*nowhere is not a folder; give one with the YAML"):
        harness_tasks(["my_sums"], include_path=[tmp_path / "nowhere"])


# The commands


def run(*words):
    return CliRunner().invoke(app, ["eval", "--device", "cpu", *map(str, words)])


def test_eval_takes_local_data_and_tasks(gsm8k, own_tasks, tmp_path):
    out = tmp_path / "out"
    done = run(
        *("--tasks", "gsm8k,my_sums", "--data", f"gsm8k={gsm8k}", "--include-path", own_tasks, "--shots", 0),
        *("--limit", 1, "--length", "fixed:4", "--unmask", "threshold:0.1", "--out", out),
    )
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in (out / "tiny-llada-base.test.jsonl").read_text().splitlines()]
    assert {record["task"] for record in records} == {"gsm8k", "my_sums"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--tasks", "gsm8k", "--data", "gsm8k"), "--data gsm8k was given; write TASK=PATH, as in gsm8k=data/gsm8k"),
        (("--tasks", "gsm8k", "--data", "=here"), "--data =here was given; write TASK=PATH"),
        (("--tasks", "gsm8k", "--data", "gsm8k="), "--data gsm8k= was given; write TASK=PATH"),
        (("--tasks", "gsm8k", "--data", "mbpp=here"), "a dataset for 'mbpp', which is not among the tasks gsm8k"),
        (("--tasks", "gsm8k", "--include-path", "nowhere"), "--include-path nowhere is not a folder"),
    ],
)
def test_eval_refuses_local_data_that_it_cannot_use_before_a_model_is_loaded(words, why):
    done = run(*words, "--model", "no/such/model")
    assert done.exit_code == 1
    assert why in " ".join(done.output.split())
