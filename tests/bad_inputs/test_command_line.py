"""Command lines that are refused: the exit code, the cause on standard error, and never a traceback."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lastword.cli import main
from lastword.errors import SettingError, WrongTypeError
from lastword.tasks import load_frozen
from tests.warm import warm_interpreter

ROOT = Path(__file__).parent.parent.parent
SPEED = ROOT / "benchmarks" / "records" / "speed"
MANY = "9" * 5_000
LONG = "x" * 5_000
HUGE = "99999999999999999999999"
BIGGEST = str(2**63 - 1)


@pytest.fixture(scope="module")
def warm():
    with warm_interpreter() as run:
        yield run


USERS = {
    "notes.txt": b"my own text\n",
    "prompts.txt": b"abc\n" * 12,
    "lines.jsonl": b'{"prompt": "abc"}\n',
    "deep.json": b"[" * 100_000,
    "empty.txt": b"",
    "bytes": b"\xff\xfe\x00\x01" * 10,
    "recipe.json": b'{"length": "fixed:4"}',
    "config.json": b"{}",
    "notes.png": b"my own picture",
    "none.parquet": b"",  # a journal without records, whatever its name
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where every row runs: files of a user's, none of which may change."""
    place = tmp_path_factory.mktemp("user")
    for name, content in USERS.items():
        (place / name).write_bytes(content)
    yield place
    assert {name: (place / name).read_bytes() for name in USERS} == USERS


def toy(command, *words):
    return (command, "abc", "-m", "toy", *words)


CALIBRATE = ("calibrate", "--prompts", "prompts.txt", "-m", "toy")
TABLES = ("tables", "--records", str(SPEED))

HOST, REMOTE = "http://127.0.0.1:1/v1", ("--engine", "openai", "--base-url")

# The words of a command line, its exit code, and what standard error says.
ROWS = [
    # usage
    (("nonsense",), 2, "No such command 'nonsense'"),
    (("--nonsense",), 2, "No such option: --nonsense"),
    (("generate", "abc", "def"), 2, "unexpected extra argument"),
    (("generate", "abc", "-x"), 2, "No such option: -x"),
    (("generate", "abc", "-m"), 2, "requires an argument"),
    (("generate", "--", "--debug", "-m"), 2, "unexpected extra argument"),
    (("recipes", "fast", "x"), 2, "unexpected extra argument"),
    (("recipes", "fast", "--debug", "x"), 2, "unexpected extra argument"),
    (("calibrate",), 2, "--prompts"),
    (("tables",), 2, "--records"),
    # prompts
    (("generate", ""), 1, "the prompt is empty"),
    (("generate",), 1, "the prompt is empty"),
    (("predict", "-"), 1, "the prompt is empty"),
    (("generate", "1 2", "--ids", "--chat"), 1, "--ids and --chat were given"),
    (("predict", "1 2", "--chat", "--ids"), 1, "--ids and --chat were given"),
    (("generate", "1.5", "--ids"), 1, "whole numbers only"),
    (("generate", MANY, "--ids"), 1, "whole numbers only"),
    (("generate", ",", "--ids", "-m", "toy"), 1, "empty"),
    (("generate", "1 -2", "--ids", "-m", "toy"), 1, "-2"),
    (("generate", f"1 {HUGE}", "--ids", "-m", "toy"), 1, "prompt 0"),
    (("predict", "a!", "-m", "toy"), 1, "'!'"),
    # numbers that cannot be
    (toy("predict", "--slots", "99999999999"), 1, "give a whole number from 1 to 1048576"),
    (toy("predict", "--slots", "-1"), 1, "--slots -1 was given; give a whole number from 1 to 1048576"),
    (toy("predict", "--slots", MANY), 2, "--slots"),
    (toy("predict", "--slots", "nan"), 2, "--slots"),
    (toy("predict", "--slots", "1.5"), 2, "--slots"),
    (toy("generate", "--length", "fixed:99999999999"), 1, "at most 1048576"),
    (toy("generate", "--length", "fixed:-1"), 1, "1 or more"),
    (toy("generate", "--length", "fixed:1e400"), 1, "whole number"),
    (toy("generate", "--length", "fixed:true"), 1, "whole number"),
    (toy("generate", "--length", f"fixed:{MANY}"), 1, "whole number"),
    (toy("generate", "--length", "survival:64,estimate=quantile:NaN"), 1, "above 0 and below 1"),
    (toy("generate", "--length", "survival:64,estimate=quantile:-Infinity"), 1, "below 1"),
    (toy("generate", "--block", BIGGEST), 1, "at most 1048576"),
    (toy("generate", "--block", "-3"), 1, "1 or more"),
    (toy("generate", "--seed", HUGE), 1, "seed must be a whole number, at most"),
    (toy("generate", "--seed", f"-{HUGE}"), 1, "seed must be a whole number, -9"),
    (toy("generate", "--temperature", "nan"), 1, "temperature"),
    (toy("generate", "--temperature", "-0.1"), 1, "temperature"),
    (toy("generate", "--temperature", "1", "--top-p", "nan"), 1, "top_p"),
    (toy("generate", "--temperature", "1", "--top-p", "1.5"), 1, "top_p"),
    (toy("generate", "--temperature", "1", "--top-k", "0"), 1, "top_k"),
    (toy("generate", "--max-new-tokens", "0"), 1, "--max-new-tokens 0 was given; give a whole number from 1"),
    (("chat", "--url", "http://127.0.0.1:1", "--timeout", "0"), 1, "--timeout 0 was given; give a number of"),
    (("chat", "--timeout", "9"), 1, "--timeout 9 was given without --base-url"),
    # URLs of servers, and options of loading that a server cannot use
    (("chat", "--base-url", "http://[::1"), 1, "--base-url 'http://[::1' was given"),
    (("chat", "--base-url", "http://host:notaport"), 1, "such as http://127.0.0.1:8000/v1"),
    (("chat", "--base-url", "ftp://host"), 1, "give http:// or https://"),
    (("chat", "--base-url", "http://user:secret@host"), 1, "'...@host' was given"),
    (("chat", "--base-url", HOST, "--device", "cpu"), 1, "--device cpu was given with --base-url"),
    (("chat", "--base-url", HOST, "--dtype", "float32"), 1, "--dtype float32 was given with --base-url"),
    (("chat", "--base-url", HOST, "--quantization", "fp8"), 1, "--quantization fp8 was given with --base-url"),
    (("eval", *REMOTE, "http://[::1"), 1, "--base-url 'http://[::1' was given"),
    (("eval", *REMOTE, "http://host:notaport"), 1, "such as http://127.0.0.1:8000/v1"),
    (("eval", *REMOTE, "http://"), 1, "--base-url 'http://' was given"),
    (("eval", *REMOTE, HOST, "--device", "cpu"), 1, "--device cpu was given with --engine openai"),
    (("eval", *REMOTE, HOST, "--dtype", "float32"), 1, "--dtype float32 was given with --engine openai"),
    (("eval", *REMOTE, HOST, "--quantization", "fp8"), 1, "--quantization fp8 was given with --engine openai"),
    (("eval", *REMOTE, HOST, "--calibration", "a.json"), 1, "--calibration a.json was given with --engine openai"),
    (("batch", "lines.jsonl", *REMOTE, "https://[", "--out", "a.jsonl"), 1, "--base-url 'https://[' was given"),
    (("batch", "lines.jsonl", *REMOTE, HOST, "--dtype", "float16", "--out", "a.jsonl"), 1, "with --engine openai"),
    (("eval", "--timeout", "nan"), 1, "--timeout nan was given; give a number of"),
    (toy("generate", "--max-new-tokens", HUGE), 1, "give a whole number from 1 to 1000000000000000"),
    (toy("generate", "--stop", ""), 1, "--stop has an empty value"),
    (toy("generate", "--guidance", "inf"), 1, "guidance"),
    (toy("generate", "--unmask", "threshold:nan"), 1, "threshold"),
    (toy("generate", "--unmask", "most-confident:0"), 1, "tokens_per_step"),
    (("demo", "-m", "toy", "--pace", "nan"), 1, "nan"),
    (("demo", "-m", "toy", "--pace", "-1"), 1, "-1.0"),
    ((*CALIBRATE, "--coverage", "nan"), 1, "coverage"),
    ((*CALIBRATE, "--coverage", "2"), 1, "coverage"),
    ((*CALIBRATE, "--batch-size", "99999999999"), 1, "99999999999"),
    ((*CALIBRATE, "--limit", "0"), 1, "--limit 0 was given; give a whole number from 1"),
    ((*CALIBRATE, "--limit", "-1"), 1, "--limit -1 was given; give a whole number from 1"),
    ((*CALIBRATE, "--slots", "0"), 1, "--slots 0 was given; give a whole number from 1 to 1048576"),
    ((*CALIBRATE, "--block", BIGGEST), 1, "block"),
    ((*CALIBRATE, "--seed", HUGE), 1, "seed"),
    (("eval", "--limit", "-1"), 1, "--limit -1 was given; give a whole number from 1"),
    (("eval", "--batch-size", "99999999999"), 1, "give a whole number from 1 to 1048576"),
    (("eval", "--seed", HUGE), 1, "seed"),
    (("drift", "--steps", "a"), 1, "--steps 'a' was given"),
    (("drift", "--steps", MANY), 1, "give numbers such as"),
    (("drift", "--slots", "99999999999"), 1, "give a whole number from 1 to 1048576"),
    # names that are nobody's
    (toy("generate", "--length", "survial"), 1, "did you mean 'survival'"),
    (toy("generate", "--length", " "), 1, "there is no length called ' '"),
    (toy("generate", "--length", ":"), 1, "there is no length called ''"),
    (toy("generate", "--length", "stop-at-end:(fixed:4"), 1, "brackets"),
    (toy("generate", "--length", LONG), 1, "known: "),
    (toy("predict", "--interpretation", "nonsense"), 1, "nonsense"),
    (toy("predict", "--ends", "both"), 1, "'document' or 'any'"),
    (("generate", "abc", "-m", LONG), 1, "there is no folder"),
    (("generate", "abc", "-m", " "), 1, "there is no folder ' '"),
    (("generate", "abc", "-m", "notes.txt"), 1, "there is no folder 'notes.txt'"),
    (("generate", "abc", "-m", "a/b/c"), 1, "there is no folder 'a/b/c'"),
    (("generate", "abc", "-m", "/"), 1, "config.json"),
    (("generate", "abc", "--device", "banana"), 1, "device='banana'"),
    (("generate", "abc", "--dtype", "int4"), 1, "dtype 'int4'"),
    (("demo", "-f", "algebra", "-f", "chess"), 1, "'chess' was given; tiny-llada-base shows"),
    (("demo", "-m", "toy", "-f", "toy", "-f", "algebra"), 1, "toy shows toy"),
    (("eval", "--tasks", "algebra,"), 1, "--tasks 'algebra,'"),
    (("eval", "--preset", "nonsense"), 1, "unknown preset 'nonsense'"),
    (("drift", "--preset", "nonsense"), 1, "unknown preset 'nonsense'"),
    # options that were given nothing
    (toy("generate", "--length", ""), 1, "--length has an empty value"),
    (toy("generate", "--unmask="), 1, "--unmask has an empty value"),
    (toy("generate", "--recipe", ""), 2, "'--recipe': the path is empty"),
    (toy("generate", "--calibration", ""), 1, "--calibration has an empty value"),
    (toy("generate", "--device", ""), 1, "--device has an empty value"),
    (("generate", "abc", "--model", ""), 1, "--model has an empty value"),
    (("demo", "-m", "toy", "-m", ""), 1, "--model has an empty value"),
    (("demo", "-f", ""), 1, "--family has an empty value"),
    (toy("predict", "--plot", ""), 2, "'--plot': the path is empty"),
    (("calibrate", "--prompts", ""), 2, "'--prompts': the path is empty"),
    ((*CALIBRATE, "--out", ""), 2, "'--out': the path is empty"),
    ((*CALIBRATE, "--family-field", ""), 1, "--family-field has an empty value"),
    (("eval", "--out", ""), 2, "'--out': the path is empty"),
    (("eval", "--tasks", ""), 1, "--tasks has an empty value"),
    (("eval", "--split", ""), 1, "--split has an empty value"),
    ((*TABLES, "--parquet", ""), 2, "'--parquet': the path is empty"),
    (("tables", "--records", ""), 2, "'--records': the path is empty"),
    # files that cannot be read
    (toy("generate", "--recipe", "."), 1, "recipe"),
    (toy("generate", "--recipe", "bytes"), 1, "recipe"),
    (toy("generate", "--recipe", "empty.txt"), 1, "recipe"),
    (toy("generate", "--recipe", "deep.json"), 1, "recursion limit"),
    (toy("generate", "--recipe", "/dev/zero"), 1, "more than 10000000 characters"),
    (("eval", "--recipe", "/dev/zero"), 1, "more than 10000000 characters"),
    (toy("generate", "--recipe", "~nosuchuser/x"), 2, "home folder"),
    (toy("generate", "--calibration", "notes.txt"), 1, "is not a calibration"),
    (toy("generate", "--calibration", "/nowhere"), 1, "is not a calibration"),
    (("calibrate", "--prompts", "nowhere.txt"), 1, "prompts"),
    (("calibrate", "--prompts", "."), 1, "prompts"),
    (("calibrate", "--prompts", "bytes"), 1, "line 1 of bytes: it is not UTF-8"),
    (("calibrate", "--prompts", "empty.txt"), 1, "has no prompts"),
    (("calibrate", "--prompts", "~nosuchuser/x"), 2, "home folder"),
    ((*CALIBRATE, "--family-field", "task"), 1, "families need a .jsonl file"),
    (("tables", "--records", "nowhere"), 1, "cannot be read as records"),
    (("tables", "--records", "notes.txt"), 1, "cannot be read as records"),
    (toy("generate", "--top-p", "0.9"), 1, "temperature"),
    (toy("generate", "--top-k", "3"), 1, "temperature"),
    (toy("generate", "--device", "cuda"), 1, "device"),
    (toy("generate", "--dtype", "int4"), 1, "dtype"),
    (("generate", "abc", "-m", "~nosuchuser/x"), 1, "home"),
    (toy("generate", "--calibration", "~nosuchuser/x"), 1, "home"),
    (("tables", "--records", "deep.json"), 1, "cannot be read as records"),
    (("tables", "--records", "empty.txt"), 1, "no records; measure some"),
    ((*TABLES, "--timed", "nowhere"), 1, "cannot be read as records"),
    # files that cannot be written, refused before the work
    (toy("predict", "--plot", "."), 1, "ends in .png"),
    (toy("predict", "--plot", "curve.xyz"), 1, "ends in .png"),
    (toy("predict", "--plot", "prompts.txt/curve.png"), 1, "cannot be written"),
    (toy("predict", "--plot", "notes.png/curve.png"), 1, "cannot be written"),
    (toy("predict", "--plot", f"{LONG}.svg"), 1, "give another file"),
    (toy("predict", "--plot", "~nosuchuser/x.png"), 2, "home folder"),
    (("demo", "-m", "toy", "--plot", "notes.txt"), 1, "ends in .png"),
    (("demo", "-m", "toy", "--plot", "/proc/curve.png"), 1, "cannot be written"),
    ((*CALIBRATE, "--out", "."), 1, "is a folder"),
    ((*CALIBRATE, "--out", "prompts.txt/lengths.json"), 1, "cannot be written"),
    ((*CALIBRATE, "--out", "notes.txt"), 1, "is not a calibration, so it was not replaced"),
    ((*CALIBRATE, "--out", "prompts.txt"), 1, "is not a calibration, so it was not replaced"),
    ((*CALIBRATE, "--out", "config.json"), 1, "is not a calibration, so it was not replaced"),
    ((*CALIBRATE, "--recipe", "recipe.json", "--out", "recipe.json"), 1, "so it was not replaced"),
    ((*CALIBRATE[:-1], "~nosuchuser/m"), 1, "home folder"),
    (("eval", "--out", "notes.txt"), 1, "is not a folder to write to (File exists)"),
    (("eval", "--out", "notes.txt/records"), 1, "is not a folder to write to (Not a directory)"),
    (("drift", "--out", "notes.txt"), 1, "is not a folder to write to"),
    ((*TABLES, "--out", "notes.txt"), 1, "is not a folder to write to"),
    ((*TABLES, "--parquet", "table.csv"), 1, "does not end in .parquet"),
    ((*TABLES, "--parquet", "."), 1, "is a folder"),
    ((*TABLES, "--timed", "none.parquet", "--parquet", "none.parquet"), 1, "contains the records"),
    ((*TABLES, "--parquet", "notes.txt/x.parquet"), 1, "is not a folder to write to"),
    # what does not go together
    (toy("generate", "--live", "--json"), 1, "--live and --json were given"),
    (toy("generate", "--chat"), 1, "chat template"),
    (toy("generate", "--unmask", "slow-fast", "--cache", "dual"), 1, "SlowFast"),
    ((*CALIBRATE, "--estimate", "scaled:2"), 1, "calibrate(estimate="),
]


def named(words):
    return " ".join(word if len(word) < 40 else f"{word[:9]}..." for word in words) or "nothing"


# How the last words of a refusal say what to type, or what may be typed.
ADVICE = re.compile(
    r"\b(give|write|use|take|leave|make|save|measure|close|export|must be|end it in|did you mean)\b"
    r"|lastword models|(known|whole numbers): \w|Try '.+ -h'|requires an argument"
)


@pytest.mark.parametrize(("words", "code", "phrase"), ROWS, ids=[named(words) for words, *_ in ROWS])
def test_a_mistake_ends_in_a_sentence(warm, folder, words, code, phrase):
    left, out, err = warm(folder, *words)
    assert (left, out) == (code, "")
    assert phrase in " ".join(err.split())
    assert ADVICE.search(err), "it does not say what to type"
    assert "Traceback" not in err
    assert len(err) < 3_000


TYPED = [
    ("bytes", b"\xff\xfe\x00", 1, "UTF-8"),
    ("a zero", b"a\x00c", 1, "'\\x00'"),
    ("half a letter", "a\u00e9".encode()[:-1], 1, "UTF-8"),
    ("newlines only", b"\n\n\n", 1, "the prompt is empty"),
    ("more than a prompt", b"a" * (10**7 + 1), 1, "more than 10000000 characters"),
]


@pytest.mark.parametrize(("stdin", "code", "phrase"), [r[1:] for r in TYPED], ids=[r[0] for r in TYPED])
def test_what_is_typed_may_be_no_prompt(warm, folder, stdin, code, phrase):
    left, out, err = warm(folder, "generate", "-m", "toy", stdin=stdin)
    assert (left, out) == (code, "")
    assert phrase in err
    assert "Traceback" not in err


def test_an_interrupt_while_decoding_is_exit_code_130(warm, folder):
    words = toy("generate", "--length", "fixed:20000")
    code, out, err = warm(folder, *words, interrupt=1.5)
    assert (code, out, err.splitlines()[-1]) == (130, "", "lastword: interrupted")
    assert "Traceback" not in err


def test_debug_shows_the_traceback_before_or_behind_the_command(warm, folder):
    for words in (("--debug", "generate", ""), ("generate", "", "--debug")):
        code, _, err = warm(folder, *words)
        assert code == 1
        assert err.startswith("Traceback")
        assert err.endswith("the prompt is empty; write one as an argument or pipe it in\n")


def test_behind_two_dashes_debug_is_a_prompt(warm, folder):
    code, _, err = warm(folder, "generate", "-m", "toy", "--", "--debug")
    assert (code, err[:9]) == (1, "lastword:")
    assert "'-'" in err


def test_the_last_of_an_option_given_twice_counts(warm, folder):
    words = toy("generate", "--length", "fixed:2", "--length", "fixed:3")
    assert warm(folder, *words)[:2] == [0, "def\n"]


def test_a_plain_prompt_is_answered_by_a_model_that_can(warm, folder):
    asked = "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"
    code, out, _ = warm(folder, "generate", asked, "--unmask", "threshold:0.9")
    assert code == 0
    assert "The final answer is $8$." in out


def test_a_calibration_of_an_embedded_model_is_saved_outside_this_folder(warm, tmp_path):
    brief = [e.prompt for e in load_frozen("test", "algebra") if "Be brief" in e.prompt]
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "prompts.txt").write_text("\n".join(prompt.replace("\n", " ") for prompt in brief[:2]))

    def run(*words):
        return warm(tmp_path / "here", *words, LASTWORD_HOME=str(tmp_path / "home"))

    calibrate = ("calibrate", "--prompts", "prompts.txt", "--coverage", "0.5", "--slots", "96")
    code, out, _ = run(*calibrate)
    assert code == 0
    (saved,) = (tmp_path / "home" / "calibrations").iterdir()
    assert f"wrote {saved}" in out
    _, *words = shlex.split(out.partition("next: ")[2])
    assert run(*words)[0] == 0
    # It is ours, so the next one may take its place.
    assert run(*calibrate)[0] == 0
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["prompts.txt"]
    assert list(saved.parent.iterdir()) == [saved]


ERRORS = [
    (SettingError("no"), 1, "no"),
    (WrongTypeError("no kind"), 1, "no kind"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (BrokenPipeError(32, "Broken pipe"), 141, ""),
    (OSError(28, "No space left on device"), 1, "No space left on device"),
    (PermissionError(13, "Permission denied", "a.json"), 1, "'a.json'"),
    (EOFError("Compressed file ended"), 1, "ends too early"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 1, "use UTF-8"),
    (RecursionError("maximum recursion depth exceeded"), 1, "nested too deeply"),
    (MemoryError(), 1, "not enough memory"),
    (RuntimeError("DefaultCPUAllocator: you tried to allocate 9 bytes"), 1, "not enough memory"),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), 1, "not enough memory"),
    (RuntimeError("shapes differ"), 70, "unexpected RuntimeError (shapes differ)"),
    (OverflowError("too large"), 70, "run again with --debug"),
]


@pytest.mark.parametrize(("error", "code", "phrase"), ERRORS, ids=[repr(e) for e, *_ in ERRORS])
def test_every_error_has_its_exit_code(monkeypatch, capsys, error, code, phrase):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr("lastword.engines.local.load", broken)
    monkeypatch.setattr(sys, "argv", ["lastword", "generate", "abc"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (code, "")
    assert phrase in said.err
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) == bool(phrase)


# Streams, encodings, environments: an interpreter each. LASTWORD stands for `python -m lastword`. Commands
# that are refused early, or need no model, start in a fraction of a second.
SHELL = [
    ("LASTWORD --help >/dev/full", 1, "No space left on device"),
    ("LASTWORD --version >/dev/full", 1, "No space left on device"),
    ("LASTWORD nonsense 2>/dev/full", 1, ""),
    ("LASTWORD generate '' 2>/dev/full", 1, ""),
    ("LASTWORD --help | true; exit ${PIPESTATUS[0]}", 141, ""),
    ("LASTWORD --version | true; exit ${PIPESTATUS[0]}", (0, 141), ""),
    ("LASTWORD --version >&-", 1, "standard output is closed"),
    ("LASTWORD generate 'abc' >&- 2>&-", 1, ""),
    ("LASTWORD --version 1</dev/null", 1, "Bad file descriptor"),
    ("LASTWORD generate <&-", 1, "the prompt is empty"),
    ("LASTWORD generate 0>/dev/null", 1, "standard input cannot be read"),
    ("LASTWORD generate '' 2>&-", 1, ""),
    ("LASTWORD generate '' <&- 2>&-", 1, ""),
    ("LASTWORD generate $'abc\\xff'", 1, "UTF-8"),
    ("LC_ALL=POSIX LASTWORD generate $'abc\\xff'", 1, "UTF-8"),
    ("printf '\\xff' | LC_ALL=POSIX LASTWORD generate", 1, "UTF-8"),
    ("LC_ALL=POSIX LASTWORD --help", 0, ""),
    ("LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LASTWORD --help", 0, ""),
    ("PYTHONIOENCODING=cp1252 LASTWORD --help", 0, ""),
    ("PYTHONIOENCODING=ascii LASTWORD generate --help", 0, ""),
    ("PYTHONIOENCODING=ascii LASTWORD \u00fc\u2588", 2, "No such command"),
    ("PYTHONIOENCODING=cp1252 LASTWORD calibrate --prompts '' --out \u2588", 2, "the path is empty"),
    ("env -i LASTWORD generate ''", 1, "the prompt is empty"),
    ("env -u HOME LASTWORD generate ''", 1, "the prompt is empty"),
    ("TERM=dumb NO_COLOR=1 LASTWORD nonsense", 2, "No such command"),
    ("COLUMNS=1 LASTWORD generate ''", 1, "the prompt is empty"),
    ("COLUMNS=0 LASTWORD --help", 0, ""),
    ("COLUMNS=junk LASTWORD --help", 0, ""),
    ("COLUMNS=99999999999999999999 LASTWORD --help", 0, ""),
    ("mkdir gone; cd gone; rmdir ../gone; LASTWORD generate abc", 1, "the current folder does not exist"),
    ("mkdir gone; cd gone; rmdir ../gone; LASTWORD --version", 0, ""),
]
# These import torch.
SLOW_SHELL = [
    ("LASTWORD recipes >/dev/full", 1, "No space left on device"),
    ("LASTWORD recipes | true; exit ${PIPESTATUS[0]}", 141, ""),
    ("LASTWORD generate abc -m toy --json >/dev/full", 1, "No space left on device"),
    ("LASTWORD generate abc -m toy --length fixed:2 2>/dev/full", 1, ""),
    ("LASTWORD generate abc -m toy --length fixed:2 <&- 2>&-", 0, ""),
    ("PYTHONIOENCODING=cp1252 LASTWORD predict abc -m toy --slots 16", 0, ""),
    ("LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LASTWORD recipes", 0, ""),
    ("PYTHONIOENCODING=ascii FORCE_COLOR=1 LASTWORD generate abc -m toy --length fixed:9", 0, ""),
    ("COLUMNS=1 LASTWORD demo -m toy", 0, ""),
    ("env -i LASTWORD generate abc -m toy --length fixed:2", 0, "2 tokens"),
]


@pytest.mark.parametrize(
    ("line", "code", "phrase"),
    [*SHELL, *(pytest.param(*row, marks=pytest.mark.full) for row in SLOW_SHELL)],
    ids=[row[0] for row in (*SHELL, *SLOW_SHELL)],
)
def test_whatever_the_streams_and_the_environment_are(tmp_path, line, code, phrase):
    home = f"LASTWORD_HOME={tmp_path / 'home'}"
    ours = f"PYTHONPATH={ROOT} {home} OMP_NUM_THREADS=1 {sys.executable} -m lastword"
    ours = ours if "env -" not in line else f"env {ours}"
    done = subprocess.run(
        ["bash", "-c", line.replace("LASTWORD", ours)],
        cwd=tmp_path,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    err = done.stderr.decode()
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), err
    assert phrase in err
    assert "Traceback" not in err
    assert "Exception ignored" not in err
