"""The package is imported on Linux, macOS and Windows: no module needs what only POSIX systems have."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Windows has none of these.
POSIX_MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
POSIX_NAMES = {
    "os": (
        *("fork", "forkpty", "getgid", "getuid", "geteuid", "killpg", "mkfifo", "setsid", "setuid", "uname"),
        *("sched_getaffinity", "sched_setaffinity", "wait3", "wait4", "WNOHANG", "O_NOFOLLOW", "O_DIRECTORY"),
        *("O_CLOEXEC", "fchmod", "fchown", "chown", "pread", "pwrite", "register_at_fork", "statvfs"),
    ),
    "signal": ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm"),
    "socket": ("AF_UNIX",),
    "time": ("tzset",),
}
PROGRAM = """
import importlib, json, sys, warnings

warnings.filterwarnings("ignore")
names, modules, attributes = json.loads(sys.argv[1])
for name in names:  # other packages have their own branches for each system
    try:
        importlib.import_module(name)
    except ImportError as error:
        assert not (error.name or "lastword").startswith("lastword"), error
for name in [name for name in sys.modules if name.partition(".")[0] == "lastword"]:
    del sys.modules[name]
for module in modules:
    sys.modules[module] = None
for module, removed in attributes.items():
    for name in removed:
        vars(sys.modules[module]).pop(name, None)
failures = {}
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        failures[name] = repr(error)
import lastword, lastword.cli
from pathlib import Path
try:
    answer = lastword.generate("toy", "abc", length="fixed:3", frames=True)
    for _ in range(2):  # a new file, and a file that is replaced
        answer.replay("run.html")
    Path("prompts.jsonl").write_text('{"prompt": "abc"}')
    sys.argv = "lastword batch prompts.jsonl --out answers.jsonl -m toy --length fixed:3".split()
    try:
        lastword.cli.main()
    except SystemExit as end:
        assert not end.code
except Exception as error:
    failures["core features"] = repr(error)
print(json.dumps(failures))
"""


def test_every_module_is_imported_and_core_features_work_without_posix(tmp_path):
    files = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "lastword").rglob("*.py"))
    names = {".".join(file.parts).removesuffix(".__init__") for file in files if file.name != "__main__"}
    names.remove("lastword.sandbox.child")  # the program that runs in the sandbox, which needs Linux
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([sorted(names), POSIX_MODULES, POSIX_NAMES])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == {}
    assert '"text":"def"' in (tmp_path / "answers.jsonl").read_text()
