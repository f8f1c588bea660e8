"""Metrics: what the server did so far, for Prometheus; named as vLLM's where it has the same."""

from __future__ import annotations

from lastword.serve.job import Answer
from lastword.serve.observer import Observer
from lastword.serve.schedule import Predicted

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics(Observer):
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
        self._latency = spread("e2e_request_latency_seconds", "From asking to the answer", SECONDS)
        self._queued = spread("request_queue_time_seconds", "Until a slot was free", SECONDS)
        self._decoding = spread("request_decode_time_seconds", "With a slot", SECONDS)
        self._first = spread("time_to_first_token_seconds", "To the first committed text", SECONDS)
        self._probing = spread("probe_time_seconds", "One batch of probes", SECONDS)
        self._probes = count("probes", "Prompts that were probed")
        self._passing = spread("pass_time_seconds", "One pass, all its rows", SECONDS)
        self._passes = count("passes", "Passes of the model, whatever their rows")
        self._steps = count("diffusion_num_denoising_steps", "Passes, a count for each row in them")
        self._columns = count("diffusion_num_canvas_positions", "Columns of rows, no padding")
        self._computed = count("computed_columns", "Columns that passes computed, with padding")
        self._useful = count("useful_columns", "Columns of answers that were given")
        self._committed = count("diffusion_num_committed_tokens", "Tokens of answers given")
        self._predicted = spread("predicted_length_tokens", "Mean length by the probe", LENGTHS)
        self._written = spread("written_length_tokens", "Length that came, end included", LENGTHS)
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

    def answered(self, answer: Answer, predicted: Predicted, first: float | None) -> None:
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
