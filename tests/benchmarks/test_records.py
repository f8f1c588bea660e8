"""Tables in docs are what their records say."""

import json
from pathlib import Path

from benchmarks import canvas, passes

DOCS = Path(__file__).parent.parent.parent / "docs"
TRIALS = canvas.RECORDS.parent / "trials"


def test_the_performance_page_shows_its_record():
    assert (
        passes.table(json.loads(passes.RECORD.read_text())) in (DOCS / "performance.md").read_text()
    )


def test_the_log_shows_the_records_of_its_trial():
    head, records = canvas.read(TRIALS / "llada-base-ahead.canvas.jsonl.gz")
    log = (DOCS / "log.md").read_text()
    for name, title in (
        ("fixed", "fixed 256"),
        ("survival", "survival"),
        ("fixed mean", "fixed at"),
    ):
        mine = [record for record in records if record["canvas"] == name]
        accuracy = sum(record["right"] for record in mine) / len(mine)
        line = next(line for line in log.splitlines() if line.startswith(f"| {title}"))
        assert f"| {accuracy:.3f} |" in line
        assert len(mine) == 5 * head["per_family"]
    assert (
        "{survival:.0f} ms a pass against {fixed:.0f} and {fixed mean:.0f}".format_map(
            {
                name: milliseconds_a_pass(records, name)
                for name in ("fixed", "survival", "fixed mean")
            }
        )
        in log
    )
    checks = [json.loads(line) for line in (TRIALS / "checks.jsonl").read_text().splitlines()]
    for check in checks[:2]:
        assert f"base {check['mean']:.2f}" in log
    for check in checks[2:]:
        shares = " | ".join(f"{check[name]:.2f}" for name in (*canvas.BENCHMARKS, "mean"))
        assert f"| {check['run']} | {shares} |" in log


def test_the_page_of_the_embedded_models_shows_their_records():
    page = (DOCS / "embedded.md").read_text()
    paths = sorted(canvas.RECORDS.glob("*.jsonl.gz"))
    assert len(paths) >= 2
    assert canvas.by_family(paths) in page
    assert canvas.table(paths) in page
    checks = canvas.RECORDS.parent / "checks.jsonl"
    for check in map(json.loads, checks.read_text().splitlines()):
        shares = " | ".join(f"{check[name]:.3f}" for name in (*canvas.BENCHMARKS, "mean"))
        assert f"| {check['model']} | {shares} |" in page


def milliseconds_a_pass(records, name):
    """A batch takes as many passes as its longest row; its rows share its time."""
    batches = {}
    for record in records:
        if record["canvas"] == name:
            batches.setdefault(record["seconds"], []).append(record["horizon"])
    seconds = sum(share * len(horizons) for share, horizons in batches.items())
    return 1000 * seconds / sum(max(horizons) for horizons in batches.values())


def test_the_trial_ran_at_the_speed_the_log_says():
    for name in ("ahead", "plain"):
        lines = (TRIALS / f"llada-base-{name}.log.jsonl").read_text().splitlines()
        speeds = sorted(json.loads(line)["tokens_per_second"] for line in lines)
        assert round(speeds[len(speeds) // 2] / 1e6, 2) == 2.15


def test_a_paired_test_of_equals_finds_nothing_and_of_a_clear_loss_finds_it():
    base = [True] * 40 + [False] * 10
    assert canvas.paired_p(base, base) == 1.0
    assert canvas.paired_p(base, [True] * 20 + [False] * 30) < 1e-4


def test_a_small_run_writes_records_that_make_a_table(tmp_path):
    class Echo(canvas.lastword.models.Toy):
        """The toy with letters enough for any prompt."""

        class Tokenizer:
            chat_template = None

            def encode(self, text):
                return [ord(letter) % 26 for letter in text][:20]

            def decode(self, ids, *, skip_special=True):
                return "".join(chr(97 + i % 26) for i in ids)

        tokenizer = Tokenizer()

    examples = canvas.load_frozen("test", "algebra")[:3]
    records = list(canvas.measure(Echo(), examples, canvas.lastword.Fixed(4), rows=2))
    assert sorted(record["place"] for record in records) == [0, 1, 2]
    assert all(record["passes"] == 4 and record["horizon"] == 4 for record in records)


def test_the_log_of_the_shipped_weights_is_what_their_training_logged():
    log = (DOCS / "log.md").read_text()
    embedded = DOCS.parent / "lastword" / "embedded"
    files = [*embedded.glob("*/log.jsonl"), *TRIALS.glob("llada-instruct-seed-*.log.jsonl")]
    found = 0
    for path in files:
        for line in map(json.loads, path.read_text().splitlines()):
            if "accuracy" in line:
                lowest = min(line["accuracy"].items(), key=lambda item: item[1])
                row = f"| {line['step']:,} | {line['accuracy']['mean']:.3f} | {lowest[0]} {lowest[1]:.2f} |"
                assert row in log
                found += 1
    assert found >= 6
