"""Tables in docs are what their records say."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from benchmarks import coverage, pages, passes, study
from lastword.paper.overview import seconds, spent
from lastword.paper.pairing import by_recipe, on_shared, sample_of
from lastword.recipe.names import PARTS
from lastword.recipe.recipe import Recipe, default_length
from lastword.tasks import BENCHMARKS

pytestmark = pytest.mark.xdist_group("records")  # read once, by one worker
DOCS = Path(__file__).parent.parent.parent / "docs"
TRIALS = study.RECORDS.parent / "trials"
DEFAULT = "auto, grow, stop"


def test_the_performance_page_shows_its_record():
    assert (
        passes.table(json.loads(passes.RECORD.read_text())) in (DOCS / "performance.md").read_text()
    )


def test_the_log_shows_the_records_of_its_trial():
    kept = gzip.decompress((TRIALS / "llada-base-ahead.canvas.jsonl.gz").read_bytes())
    head, *records = map(json.loads, kept.splitlines())
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
        shares = " | ".join(f"{check[name]:.2f}" for name in (*BENCHMARKS, "mean"))
        assert f"| {check['run']} | {shares} |" in log


def test_the_pages_show_what_their_records_say():
    """In a process of its own: half a million records take long where the types of every call are checked."""
    command = [sys.executable, "-m", "benchmarks.pages", "--check"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=DOCS.parent, check=False)
    assert run.returncode == 0, f"run python -m benchmarks.pages; stale: {run.stdout}{run.stderr}"


def test_a_table_that_differs_is_written_anew(monkeypatch):
    monkeypatch.setitem(pages.TABLES, "speed", lambda: "| new |")
    page = "before\n<!-- table: speed -->\n\n| old |\n\n<!-- end -->\nbehind"
    assert pages.written(page) == page.replace("old", "new")


def test_every_table_is_shown_once():
    shown = [name for page in pages.PAGES for _, name, _ in pages.PLACE.findall(page.read_text())]
    assert sorted(shown) == sorted(pages.TABLES)


def test_the_records_are_of_the_weights_that_ship():
    for model in study.MODELS:
        found = {r["weights"] for r in pages.study() if r["model"] == model}
        assert found == {study.shipped(model)}


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


def test_the_arms_go_together_and_differ():
    known = {arm: study.recipe_of(arm) for arm in study.ARMS}
    assert len({recipe.to_json() for recipe in known.values()}) == len(known)
    special = {study.FIXED_MEAN, study.FIXED_MEANS, study.DRIFT}
    for group in study.GROUPS.values():
        assert set(group.arms) <= set(known) | special


def test_the_bar_for_the_embedded_models_is_met():
    for model in study.MODELS:
        shares = pages.accuracy(model)
        assert pages.asked(model) >= 500
        assert sum(shares.values()) / len(shares) >= 0.85
        assert min(shares.values()) >= 0.70


def test_the_prose_says_what_the_records_say():
    readme, results = (DOCS.parent / "README.md").read_text(), (DOCS / "results.md").read_text()
    lost, more, columns = {}, {}, {}
    for model in study.MODELS:
        arms = {name: pages._of_arm(model, name) for name in ("fixed 256", "survival")}
        base, other = on_shared(arms["fixed 256"], arms["survival"])
        lost[model] = f"{100 * (mean_score(base) - mean_score(other)):.1f}"
        needed = {sample_of(r): r["length"] + 1 for r in base if r["finish"] == "ended"}
        planned = [r["horizon"] for r in other if sample_of(r) in needed]
        more[model] = f"{100 * (sum(planned) / sum(needed.values()) - 1):.0f}"
        columns[model] = spent(other, "columns") / spent(base, "columns")
    base_pair, instruct = study.MODELS[:2], study.MODELS[2:]
    assert "{:.2f} and {:.2f} of its columns".format(*(columns[m] for m in base_pair)) in readme
    assert "it loses {} and {} points".format(*(lost[m] for m in instruct)) in readme.replace(
        "\n ", ""
    )
    assert "plans {} and {}% more slots".format(*(more[m] for m in base_pair)) in results


# The default


def against_fixed(arm, split="test"):
    return [pages.against_fixed(model, arm, split) for model in study.MODELS]


def test_the_default_is_what_validation_prompts_chose():
    """Nothing lost on any model, then the fewest columns, but for two percent to go with every cache."""
    assert Recipe(length=default_length(256), block=32) == study.recipe_of(DEFAULT)
    candidates = {arm: against_fixed(arm, "validation") for arm in study.GROUPS["choose"].arms}
    spent = {
        arm: sum(found.columns for found in mine)
        for arm, mine in candidates.items()
        if all(found is not None and found.points >= 0 for found in mine)
    }
    assert DEFAULT in spent
    assert spent[DEFAULT] <= 1.02 * min(spent.values())


def test_the_default_meets_its_bar_on_test_prompts():
    default, paper = against_fixed(DEFAULT), against_fixed("survival")
    assert all(found.points > 0 or found.p > 0.05 for found in default)
    for ours, theirs in zip(default[:2], paper[:2]):  # base models
        assert ours.columns <= 0.75 * theirs.columns
    for peer in ("DAEDAL, one token a pass", "rho-EOS, one token a pass"):
        for ours, theirs in zip(
            default[2:], against_fixed(peer)[2:]
        ):  # instruct models, the same rule
            assert ours.columns < theirs.columns
    decision = (DOCS / "decisions" / "0016-the-default.md").read_text().replace("\n", " ")
    assert (
        "{:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} points".format(*(f.points for f in default))
        in decision
    )
    assert "{:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} at".format(*(f.points for f in paper)) in decision
    assert {f"{found.columns:.2f}" for found in default} == {"0.16"}


def test_prompts_nobody_had_seen_confirm_the_default():
    """Decision 16, as it was written down before they were asked."""
    default, paper = against_fixed(DEFAULT, "unseen"), against_fixed("survival", "unseen")
    for group in ("confirm", "peers"):
        for arm in study.GROUPS[group].arms:
            for model in study.GROUPS[group].models:
                asked = pages._of(model, study.recipe_of(arm), "unseen")
                assert len(asked) == 700 * len(BENCHMARKS)
    assert all(found.points > 0 or found.p >= 0.05 for found in default)
    assert all(ours.columns <= 0.75 * theirs.columns for ours, theirs in zip(default, paper[:2]))
    for peer in ("DAEDAL, one token a pass", "rho-EOS, one token a pass"):
        theirs = against_fixed(peer, "unseen")[2:]
        assert all(ours.columns < other.columns for ours, other in zip(default[2:], theirs))
    decision = (DOCS / "decisions" / "0016-the-default.md").read_text().replace("\n", " ")
    points = "(1) {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} points".format(*(f.points for f in default))
    chances = "(p {:.1g}, {:.1g}, {:.1g} and {:.1g})".format(*(f.p for f in default))
    shares = (ours.columns / theirs.columns for ours, theirs in zip(default, paper[:2]))
    assert f"{points} {chances}" in decision
    assert "(2) {:.2f} and {:.2f} of the paper's columns".format(*shares) in decision
    spent = [
        "{:.3f} and {:.3f}".format(*(f.columns for f in against_fixed(arm, "unseen")[2:]))
        for arm in (DEFAULT, "DAEDAL, one token a pass", "rho-EOS, one token a pass")
    ]
    assert all(said in decision for said in spent)


def times_as_fast(folder, arm):
    """The least and the most over the models that were timed with it."""
    faster = []
    for model in study.MODELS:
        found = by_recipe(r for r in pages.timed(folder) if r["model"] == model)
        base, own = on_shared(
            *(found.get(pages._text(study.recipe_of(name)), []) for name in ("fixed 256", arm))
        )
        faster += [seconds(base) / seconds(own)] if own else []
    return min(faster), max(faster)


def test_the_readme_says_how_fast_the_default_was():
    readme = (DOCS.parent / "README.md").read_text().replace("\n ", "")
    alone, cached = DEFAULT, f"{DEFAULT} + threshold + dual cache"
    assert "{:.1f} to {:.1f} times as fast".format(*times_as_fast(pages.SPEED, alone)) in readme
    assert (
        "`DualCache` {:.0f} to {:.0f} times".format(*times_as_fast(pages.SPEED, cached)) in readme
    )
    assert {f"{times:.0f}" for times in times_as_fast(pages.BATCH_SPEED, alone)} == {"2"}
    threshold = times_as_fast(pages.BATCH_SPEED, f"{DEFAULT} + threshold")
    assert (
        "it is twice as fast, with a threshold {:.1f} to {:.1f} times".format(*threshold) in readme
    )


def batch_passes(arm):
    """For every model: milliseconds a pass, and passes of the longest row, over its five batches."""
    found = []
    for model in study.MODELS:
        own = by_recipe(r for r in pages.timed(pages.BATCH_SPEED) if r["model"] == model)
        batches = [
            [r for r in own[pages._text(study.recipe_of(arm))] if r["task"] == family]
            for family in BENCHMARKS
        ]
        assert all(len(batch) == batch[0]["rows"] == 500 for batch in batches)
        passes = sum(max(r["cost"]["passes"] for r in batch) for batch in batches)
        found.append((1000 * sum(map(seconds, batches)) / passes, passes))
    return [(min(values), max(values)) for values in zip(*found)]


def test_every_arm_was_timed_in_batches_of_500_on_every_model():
    results = " ".join((DOCS / "results.md").read_text().split())
    for arm in study.GROUPS["speed"].arms:
        batch_passes(arm)  # asserts that there are five batches of 500
    (fixed, (most, _)), (default, passes) = batch_passes("fixed 256"), batch_passes(DEFAULT)
    said = "takes {:.0f} to {:.0f} ms on the fixed canvas and {:.0f} to {:.0f} with the default"
    assert said.format(*fixed, *default) in results
    said = "takes {:,} to {:,} passes of the default and {:,} of the fixed canvas"
    assert said.format(*passes, most) in results


def test_parts_were_timed_on_the_prompts_they_were_judged_by():
    """The first 300 of each family, in batches of 500."""
    whole = {(family, place) for family in BENCHMARKS for place in range(300)}
    for model in study.BASE:
        found = by_recipe(r for r in pages.timed(pages.PARTS) if r["model"] == model)
        for arm in study.GROUPS["parts"].arms:
            own = found[pages._text(study.recipe_of(arm))]
            assert {(r["task"], r["place"]) for r in own if r["rows"] == 500} == whole, (model, arm)


def test_every_part_was_timed():
    """But for one that wants a calibration, one that caps a length, and one that is measured untimed."""
    recipes = [json.loads(study.recipe_of(arm).to_json()) for arm in study.GROUPS["parts"].arms]
    for axis in ("length", "unmask", "commit", "cache"):
        told = set(
            re.findall(r'"name": "([a-z-]+)"', json.dumps([recipe[axis] for recipe in recipes]))
        )
        assert set(PARTS[axis]) - told <= {"calibrated", "budget", "reread"}


def test_the_page_says_how_well_seconds_repeat():
    """Shares of the fixed canvas's time in two runs, of recipes whose code did not change between."""
    changed = {"entropy-bound", "factor", "maskgit", "daedal", "rho-eos"}
    moved = []
    for model in study.BASE:
        shares = []
        for folder in (pages.PARTS.with_name("parts-first"), pages.PARTS):
            found = by_recipe(r for r in pages.timed(folder) if r["model"] == model)
            fixed = seconds(found[pages._text(study.recipe_of("fixed 256"))])
            shares.append({text: seconds(own) / fixed for text, own in found.items()})
        moved += [
            (abs(shares[1][text] / share - 1), json.loads(text)["cache"]["name"])
            for text, share in shares[0].items()
            if share != 1
            and '"pace": 2.0' not in text
            and not changed & {json.loads(text)[axis]["name"] for axis in ("length", "unmask")}
        ]
    far = sorted(by for by, _ in moved if by > 0.2)
    assert len(far) == 3
    assert {cache for by, cache in moved if by > 0.2} == {"dual"}
    said = (
        f"Of {len(moved)} shares that were measured on two days with the same code "
        "(`benchmarks/records/parts-first` is the other), half differ by less than "
        f"{median(by for by, _ in moved):.0%}, {len(moved) - len(far)} by at most a fifth, "
        f"and three dual caches by {100 * far[0]:.0f} to {far[-1]:.0%}."
    )
    assert said in " ".join((DOCS / "choose.md").read_text().split())


def test_what_was_made_faster_between_the_two_runs_writes_the_same():
    """As docs/log.md says: every answer has the length and the passes it had before."""
    first, then = (
        {
            (r["model"], json.dumps(r["recipe"], sort_keys=True), r["task"], r["place"]): (
                r["length"],
                r["cost"]["passes"],
            )
            for r in pages.timed(folder)
        }
        for folder in (pages.PARTS.with_name("parts-first"), pages.PARTS)
    )
    assert len(first) == 65 * 1500
    assert all(then[answer] == said for answer, said in first.items())


def test_the_page_says_which_parts_save_time():
    shares = {}  # of the fixed canvas's seconds, by recipe; the table itself is held to the records elsewhere
    page = (DOCS / "choose.md").read_text()
    for line in (
        page.partition("<!-- table: parts -->")[2].partition("<!-- end -->")[0].splitlines()
    ):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1].startswith("tiny-") and cells[-2]:
            shares.setdefault(cells[2], []).append(float(cells[-2]))
    prose = " ".join(page.split())

    def says(sentence, *arms):
        found = [share for arm in arms for share in shares[arm]]
        assert sentence.format(f"{min(found):.2f}", f"{max(found):.2f}") in prose

    says("the prediction with a threshold takes {} to {} of the time", "survival + threshold")
    says("with `Factor` {} to {}", "survival + factor")
    says("or SlowFast {} to {}", "survival + entropy bound", "survival + SlowFast")
    says("default with a threshold {} to {}", "auto, grow, stop + threshold")
    says("stopping at the end with a threshold {} to {}", "stop at end + threshold")
    says("({} to {} for the default", DEFAULT)
    says("{} to {} for `StopAtEnd`", "stop at end")
    says("{} to {} for the paper's prediction", "survival")
    says("(prefix {} to {}, dual", "prefix cache")
    says("dual {} to {}) **and next", "dual cache")
    says("dual cache takes {} to {} on the predicted", "survival + dual cache")
    says("blocks alone take {} to {}", "survival, blocks")
    says("and {} to {} with the default length", f"{DEFAULT} + dual cache")
    dual = [f"{length} + threshold + dual cache" for length in ("survival", DEFAULT)]
    says("({} to {} against", *dual)
    says("against {} to {})", "survival + threshold", f"{DEFAULT} + threshold")
    says("`FeatureCache` ({} to {})", "feature cache")
    says("`Prophet` ({} to {}:", "Prophet")
    says("`CoinFlip` {} to {}", "at random", "coin flip")
    says("MaskGIT {} to {}", "MaskGIT, cosine, two a pass")
    says("**DAEDAL takes {}**", "DAEDAL")
    says("fills by takes {} to {} alone", "threshold 0.9")


# Bounds


def test_calibrated_bounds_cover_within_two_points_of_what_they_say():
    assert list(coverage.read()) == list(study.MODELS)
    for families in coverage.read().values():
        assert sorted(families) == sorted(BENCHMARKS)
        for record in families.values():
            for share in coverage.COVERAGES:
                known, new = coverage.halves(coverage.pairs_of(record, "own", share))
                assert len(known) == len(new) == 4000
                assert abs(coverage.covered(new, coverage.factor(known, share)) - share) <= 0.02


def mean_score(records):
    return sum(record["score"] for record in records) / len(records)
