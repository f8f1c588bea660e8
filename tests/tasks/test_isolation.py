from __future__ import annotations

import socket

import pytest

from lastword.errors import TaskError
from lastword.tasks import isolation
from lastword.tasks.isolation import Level, run_programs

HARM = {
    "wrong": "assert 1 == 2",
    "not python": "def f(:",
    "infinite loop": "while True: pass",
    "early exit": "import os; os._exit(0)",
    "polite early exit": "raise SystemExit(0)",
    "output flood": "while True: print('x' * 10_000)",
    "our files": "open('/etc/passwd').read()",
    "our folder": f"import os; os.listdir({__file__.rsplit('/', 1)[0]!r})",
    "memory": "x = bytearray(2 << 30)",
    "processes": "import os, time\nfor _ in range(200):\n    if os.fork() == 0: time.sleep(9)",
    "system files": "open('/usr/lastword', 'w')",
    "standard input": "input()",
    "guessed token": "print('0' * 32); raise SystemExit",
}


@pytest.fixture(autouse=True)
def _needs_a_sandbox() -> None:
    try:
        run_programs([""])
    except TaskError as refusal:
        pytest.skip(str(refusal))


def test_harmful_programs_do_not_pass() -> None:
    outcomes = dict(zip(HARM, run_programs(list(HARM.values()), workers=4, wall=2.0), strict=True))
    assert [name for name, outcome in outcomes.items() if outcome.passed] == []
    assert outcomes["infinite loop"].detail == "stopped after 2 s"
    assert "AssertionError" in outcomes["wrong"].detail


def test_the_network_is_out_of_reach() -> None:
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(type=socket.SOCK_DGRAM)
    with tcp, udp:
        udp.bind(("127.0.0.1", 0))
        tcp.settimeout(0.2)
        udp.settimeout(0.2)
        outcomes = run_programs(
            [
                f"import socket; socket.create_connection({tcp.getsockname()!r}, timeout=1)",
                "import socket\n"
                f"socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', {udp.getsockname()!r})",
            ]
        )
        assert [outcome.passed for outcome in outcomes] == [False, False]
        with pytest.raises(TimeoutError):
            tcp.accept()
        with pytest.raises(TimeoutError):
            udp.recv(1)


def test_harmless_programs_pass_and_are_not_root() -> None:
    programs = [
        "",
        "assert 1 + 1 == 2",
        "import tempfile; tempfile.TemporaryFile().write(b'b')",
        "print('fine')",
    ]
    outcomes = run_programs(programs)
    assert all(outcome.passed for outcome in outcomes)
    assert outcomes[-1].detail == "fine\n"
    assert outcomes[0].level in (Level.BUBBLEWRAP, Level.NAMESPACES)
    (caps,) = run_programs(["import os\ntry: os.chroot('/')\nexcept PermissionError: print('no')"])
    assert caps.detail == "no\n"


def test_results_keep_their_order() -> None:
    outcomes = run_programs([f"assert {i} % 3" for i in range(9)], workers=3)
    assert [outcome.passed for outcome in outcomes] == [bool(i % 3) for i in range(9)]


def test_nothing_runs_without_isolation_unless_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    command = isolation._command

    def only_limits(level: Level, wall: float) -> list[str]:
        return command(level, wall) if level is Level.LIMITS else ["/nonexistent"]

    monkeypatch.setattr(isolation, "_command", only_limits)
    isolation._level.cache_clear()
    try:
        with pytest.raises(TaskError, match="allow_unsafe=True"):
            run_programs(["assert True"])
        (outcome,) = run_programs(["assert True"], allow_unsafe=True)
        assert outcome.passed
        assert outcome.level is Level.LIMITS
    finally:
        isolation._level.cache_clear()
