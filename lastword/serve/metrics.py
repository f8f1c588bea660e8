"""Metrics of an engine for Prometheus, and those of several replicas on one page."""

from __future__ import annotations

from collections.abc import Mapping

from lastword.serve.request import RequestFinished
from lastword.serve.scheduler import PredictedWork, ReplicaReport


class EngineObserver:
    """Told from the engine's thread: metrics for Prometheus, or what a benchmark counts."""

    def text(self) -> bytes:
        """All that is known, as /metrics says it."""
        return b""

    def now(self, running: int, waiting: int, slots: int) -> None:
        """How many answers have a slot, how many wait, and how many slots there are."""

    def arrived(self, prompt: int) -> None:
        """A job came, with so many tokens."""

    def probed(self, rows: int, seconds: float) -> None:
        """A batch of probes."""

    def passed(self, rows: int, columns: int, computed: int, seconds: float) -> None:
        """A pass over so many rows and columns; `computed` counts padding, too."""

    def outgrown(self) -> None:
        """A row has more columns than were reserved for it."""

    def answered(self, answer: RequestFinished, predicted: PredictedWork, first: float | None) -> None:
        """An answer was given; `first`: seconds to its first text."""

    def ended(self, how: str) -> None:
        """A job ended: answered, cancelled, expired, refused or failed."""


LENGTH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class PrometheusMetrics(EngineObserver):
    """Counters of one engine, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()

        def count(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"lastword:{name}", says, labels, registry=self._registry)

        def gauge(name: str, says: str) -> Gauge:
            return Gauge(f"lastword:{name}", says, registry=self._registry)

        def spread(name: str, says: str, buckets: tuple[int | float, ...]) -> Histogram:
            return Histogram(f"lastword:{name}", says, buckets=buckets, registry=self._registry)

        self._running = gauge("num_requests_running", "Answers that have a slot")
        self._waiting = gauge("num_requests_waiting", "Answers that wait for a slot")
        self._slots = gauge("slots", "Rows that are decoded at once")
        self._prompt_tokens = count("prompt_tokens", "Tokens of prompts")
        self._tokens = count("generation_tokens", "Tokens of answers")
        self._success = count("request_success", "Answers given", "finished_reason")
        self._ended = count("request_ended", "Jobs that ended, and how", "how")
        self._latency = spread("e2e_request_latency_seconds", "From asking to the answer", SECONDS_BUCKETS)
        self._queued = spread("request_queue_time_seconds", "Until a slot was free", SECONDS_BUCKETS)
        self._decoding = spread("request_decode_time_seconds", "With a slot", SECONDS_BUCKETS)
        self._first = spread("time_to_first_token_seconds", "To the first committed text", SECONDS_BUCKETS)
        self._probing = spread("probe_time_seconds", "One batch of probes", SECONDS_BUCKETS)
        self._probes = count("probes", "Prompts that were probed")
        self._passing = spread("pass_time_seconds", "One pass, all its rows", SECONDS_BUCKETS)
        self._passes = count("passes", "Passes of the model, whatever their rows")
        self._steps = count("diffusion_num_denoising_steps", "Passes, a count for each row in them")
        self._columns = count("diffusion_num_canvas_positions", "Columns of rows, no padding")
        self._computed = count("computed_columns", "Columns that passes computed, with padding")
        self._useful = count("useful_columns", "Columns of answers that were given")
        self._committed = count("diffusion_num_committed_tokens", "Tokens of answers given")
        self._predicted = spread("predicted_length_tokens", "Mean length by the probe", LENGTH_BUCKETS)
        self._written = spread("written_length_tokens", "Length that came, end included", LENGTH_BUCKETS)
        self._overruns = count("overruns", "Answers that outgrew what was reserved for them")
        self._per_forward = spread(
            "tokens_per_forward",
            "Tokens of an answer by pass",
            (0.5, 1, 1.5, 2, 3, 4, 6, 8, 16, 32),
        )

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def now(self, running: int, waiting: int, slots: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)
        self._slots.set(slots)

    def arrived(self, prompt: int) -> None:
        self._prompt_tokens.inc(prompt)

    def probed(self, rows: int, seconds: float) -> None:
        self._probing.observe(seconds)
        self._probes.inc(rows)

    def passed(self, rows: int, columns: int, computed: int, seconds: float) -> None:
        self._passing.observe(seconds)
        self._passes.inc()
        self._steps.inc(rows)
        self._columns.inc(columns)
        self._computed.inc(computed)

    def outgrown(self) -> None:
        self._overruns.inc()

    def answered(self, answer: RequestFinished, predicted: PredictedWork, first: float | None) -> None:
        cost, tokens = answer.generation.cost, answer.tokens
        self._success.labels("length" if answer.cut else "stop").inc()
        self._tokens.inc(tokens)
        self._committed.inc(tokens)
        self._useful.inc(cost.tokens_computed)
        self._latency.observe(answer.queued + answer.decoding)
        self._queued.observe(answer.queued)
        self._decoding.observe(answer.decoding)
        if first is not None:
            self._first.observe(first)
        self._predicted.observe(predicted.tokens)
        self._written.observe(len(answer.generation.tokens) + (not answer.cut))
        self._per_forward.observe(tokens / max(1, cost.forward_passes))

    def ended(self, how: str) -> None:
        self._ended.labels(how).inc()


REPLICA_LABEL = "replica"


def merge_metrics(texts: Mapping[str, bytes], reports: Mapping[str, ReplicaReport]) -> bytes:
    """One page for Prometheus, which adds them up.

    Sums of ours would fall when a replica goes, and a counter that falls reads as one that began anew.
    """
    families: dict[str, list[str]] = {}
    for name, text in texts.items():
        heading = ""
        for line in text.decode().splitlines():
            if line.startswith("# HELP"):
                heading = line
                families.setdefault(heading, [])
            elif line.startswith("#"):
                if line not in families[heading]:
                    families[heading].append(line)
            elif line:
                families[heading].append(_labelled(line, name))
    lines = [line for heading, rows in families.items() for line in (heading, *rows)]
    lines += [
        "# HELP lastword:replicas Replicas that run",
        "# TYPE lastword:replicas gauge",
        f"lastword:replicas {len(reports)}",
    ]
    for unit in ("columns", "seconds"):
        family = f"lastword:predicted_work_{unit}"
        lines += [f"# HELP {family} Work in hand, as predicted", f"# TYPE {family} gauge"]
        lines += [
            f'{family}{{{REPLICA_LABEL}="{name}"}} {getattr(report, unit):.6g}'
            for name, report in reports.items()
        ]
    return ("\n".join(lines) + "\n").encode()


def _labelled(line: str, name: str) -> str:
    """A sample with one label more; values of ours hold no space."""
    series, _, value = line.rpartition(" ")
    label = f'{REPLICA_LABEL}="{name}"'
    if series.endswith("}"):
        return f"{series[:-1]},{label}}} {value}"
    return f"{series}{{{label}}} {value}"
