"""The examples run as they are, and show what their README says."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import serving

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples"
FILES = sorted(path.name for path in FOLDER.glob("*.py"))
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, names_restored):
    """Runs an example in an empty folder, with these arguments; gives the lines it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")

    def one(name: str, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return one


def test_a_first_answer_is_right_and_says_what_it_cost(run):
    printed = run("first_answer.py")
    assert "Final Answer: The final answer is $8$." in printed
    assert "probe: 1 forward pass, " in "\n".join(printed)
    assert printed[-1] == "The model ended its answer."


def test_answers_that_are_asked_for_at_length_are_expected_to_be_longer(run, tmp_path):
    printed = run("length_distribution.py")
    expected = [float(found) for found in re.findall(r"Expected ([\d.]+) tokens;", "\n".join(printed))]
    assert len(expected) == 3
    assert expected == sorted(expected)
    assert (tmp_path / "lengths.png").stat().st_size > 10_000


def test_without_matplotlib_the_lengths_are_printed_all_the_same(run, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "matplotlib is not installed" in run("length_distribution.py")[-1]
    assert not (tmp_path / "lengths.png").exists()


def test_a_rule_of_ones_own_decodes_in_fewer_passes_than_one_token_each(run):
    printed = "\n".join(run("custom_unmask_rule.py"))
    passes = dict(re.findall(r"^(\S+): (\d+) forward passes$", printed, re.MULTILINE))
    assert int(passes["confident-run"]) < int(passes["most-confident"])
    assert printed.count("The final answer is $8$.") == 3


def test_a_plain_function_is_a_model(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    printed = run("transformers_adapter.py")
    assert "a plain function replaces" in printed[0]
    assert [line.rpartition("; ")[2] for line in printed[1:]] == ["equal to its solo run"] * 2


class Bert:
    """Stands for transformers, which is no dependency of ours: its output is an object with logits."""

    class BertConfig:
        def __init__(self, *, vocab_size, max_position_embeddings, **shape):
            self.vocabulary = vocab_size

    class BertForMaskedLM:
        def __init__(self, config):
            self.vocabulary = config.vocabulary

        def eval(self):
            return self

        def __call__(self, input_ids):
            import torch

            one = torch.nn.functional.one_hot(input_ids, self.vocabulary)
            return type("Output", (), {"logits": one.cumsum(1).float()})()


def test_a_model_of_transformers_is_one_too(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", Bert)
    printed = run("transformers_adapter.py")
    assert len(printed) == 2
    assert all(line.endswith("; equal to its solo run") for line in printed)


@pytest.mark.full
def test_an_evaluation_ends_in_a_comparison_and_decodes_nothing_twice(run, tmp_path):
    printed = run("evaluate_to_table.py", str(tmp_path / "records"))
    (journal,) = (tmp_path / "records").iterdir()
    written = journal.read_bytes()
    assert len(written.splitlines()) == 8
    assert " compared with fixed:128," in printed[0]
    assert 0 < float(re.search(r"tokens computed ([\d.]+)", "\n".join(printed))[1]) < 1
    assert run("evaluate_to_table.py", str(tmp_path / "records")) == printed
    assert journal.read_bytes() == written


@pytest.mark.full
def test_a_client_is_told_lengths_an_answer_and_a_stream(run):
    import lastword

    model = lastword.load("tiny-llada-instruct", device="cpu")
    with serving(model, name="tiny-llada-instruct") as server:
        printed = "\n".join(run("server_client.py", server.url))
    assert " tokens; 90% of answers within " in printed
    assert re.search(r"\d+ tokens, \d+ forward passes", printed)
    assert printed.count("The final answer is $8$.") == 2


@pytest.mark.full
def test_a_batch_is_answered_on_ray(tmp_path):
    pytest.importorskip("ray", reason="needs the package ray")
    done = subprocess.run(
        [sys.executable, str(FOLDER / "batch_on_ray.py"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "6 answered, 0 failed" in done.stdout
    assert done.stdout.count("The final answer is") == 6


@pytest.mark.full
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    """Its pictures are drawn, and what shows itself does."""
    nbformat = pytest.importorskip("nbformat", reason="needs the package nbformat")
    nbclient = pytest.importorskip("nbclient", reason="needs the package nbclient")
    pytest.importorskip("ipykernel", reason="needs the package ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # a kernel draws into the notebook by itself
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(FOLDER / name, as_version=4)
    nbformat.validate(notebook)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = [kind for output in outputs for kind in output.get("data", ())]
    shown = {"lengths.ipynb": (2, 1), "decoding.ipynb": (1, 2)}[name]
    assert (kinds.count("image/png"), kinds.count("text/html")) == shown
    assert all(output.get("name") != "stderr" for output in outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_what_it_printed(name):
    cells = json.loads((FOLDER / name).read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in code:
        compile("".join(cell["source"]), name, "exec")


def test_the_readme_lists_every_example():
    listed = re.findall(r"^\| \[([\w.]+)\]\(\1\) \| \S", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted([*FILES, *NOTEBOOKS])


@pytest.mark.parametrize("name", FILES)
def test_an_example_is_short_and_says_how_it_is_run(name):
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= 50
    assert f"python examples/{name}" in ast.get_docstring(ast.parse(text))
