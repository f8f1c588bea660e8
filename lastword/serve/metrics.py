"""Prometheus metrics of one engine, of several replicas merged, and of the HTTP requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import prometheus_client as prometheus
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from lastword.api import Finish
from lastword.serve.request import RequestFinished
from lastword.serve.scheduler import EngineLoad, PredictedWork

LENGTH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
RATE_BUCKETS = (0.5, 1, 1.5, 2, 3, 4, 6, 8, 16, 32)
REPLICA_LABEL = "replica"


class EngineMetrics:
    """Prometheus metrics of one engine, updated by its thread; metrics that vLLM also has keep vLLM's names."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()

        def add(kind: Any, name: str, help_text: str, **options: Any) -> Any:
            return kind(f"lastword:{name}", help_text, registry=self._registry, **options)

        gauge, counter = partial(add, Gauge), partial(add, Counter)
        histogram = partial(add, Histogram, buckets=SECONDS_BUCKETS)
        self.running = gauge("num_requests_running", "Answers in the running batch")
        self.waiting = gauge("num_requests_waiting", "Answers that wait")
        self.max_batch_size = gauge("max_batch_size", "Answers decoded at once")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self._tokens = counter("generation_tokens", "Tokens of finished answers")
        self._success = counter("request_success", "Finished answers", labelnames=["finished_reason"])
        self.outcomes = counter("request_ended", "Requests that ended", labelnames=["outcome"])
        self._latency = histogram("e2e_request_latency_seconds", "From submission to the answer")
        self._queued = histogram("request_queue_time_seconds", "From submission to the running batch")
        self._decoding = histogram("request_decode_time_seconds", "In the running batch")
        self._first_text = histogram("time_to_first_token_seconds", "To the first final text")
        self.probe_seconds = histogram("probe_time_seconds", "One batch of probes")
        self.probes = counter("probes", "Prompts that were probed")
        self._pass_seconds = histogram("forward_pass_time_seconds", "One forward pass of a batch")
        self._passes = counter("forward_passes", "Forward passes of batches")
        self._row_passes = counter("diffusion_num_denoising_steps", "Forward passes, counted once per row")
        self._positions = counter("diffusion_num_canvas_positions", "Tokens computed, without padding")
        self._computed = counter("tokens_computed", "Tokens computed, with padding")
        self._useful = counter("useful_tokens_computed", "Tokens computed for finished answers")
        self._committed = counter("diffusion_num_committed_tokens", "Tokens of finished answers")
        self._predicted = histogram("predicted_length_tokens", "Predicted mean length", buckets=LENGTH_BUCKETS)
        self._length = histogram("answer_length_tokens", "Length with the end token", buckets=LENGTH_BUCKETS)
        self.overruns = counter("overruns", "Answers that needed more tokens than were reserved")
        self._rate = histogram("tokens_per_forward", "Tokens of an answer per forward pass", buckets=RATE_BUCKETS)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return prometheus.generate_latest(self._registry)

    def count_passes(self, passes: int, row_passes: int, tokens: int, padded_tokens: int, seconds: float) -> None:
        """Count the forward passes of a step and the tokens that they computed, without and with padding."""
        for _ in range(passes):
            self._pass_seconds.observe(seconds / passes)
        self._passes.inc(passes)
        self._row_passes.inc(row_passes)
        self._positions.inc(tokens)
        self._computed.inc(padded_tokens)

    def count_answer(self, answer: RequestFinished, predicted: PredictedWork, first_text_seconds: float | None) -> None:
        """Count a finished answer; `first_text_seconds` is None if no text was emitted."""
        generation = answer.generation
        cost, tokens = generation.cost, len(generation.tokens)
        is_complete = generation.finish in (Finish.ENDED, Finish.STOPPED)
        self._success.labels("stop" if is_complete else "length").inc()
        self._tokens.inc(tokens)
        self._committed.inc(tokens)
        self._useful.inc(cost.tokens_computed)
        self._latency.observe(answer.seconds_queued + answer.seconds_decoding)
        self._queued.observe(answer.seconds_queued)
        self._decoding.observe(answer.seconds_decoding)
        if first_text_seconds is not None:
            self._first_text.observe(first_text_seconds)
        self._predicted.observe(predicted.tokens)
        self._length.observe(tokens + is_complete)
        self._rate.observe(tokens / max(1, cost.forward_passes))


class HttpMetrics:
    """Prometheus metrics of the process that serves HTTP: requests, errors, version, memory and CPU time."""

    def __init__(self) -> None:
        self._registry = registry = prometheus.CollectorRegistry()
        add, prefix = partial(Counter, registry=registry), "lastword:http"
        self._requests = add(f"{prefix}_requests", "HTTP requests", ["method", "route", "status"])
        self._errors = add(f"{prefix}_errors", "HTTP requests that failed", ["route", "code"])
        self.refused = add("lastword:connections_refused", "Connections closed because too many were open")
        name, text = f"{prefix}_request_duration_seconds", "From the request to the end of its response"
        self._seconds = Histogram(name, text, ["route"], registry=registry, buckets=SECONDS_BUCKETS)
        self.build = prometheus.Info("lastword:build", "Version, model and default recipe", registry=registry)
        prometheus.ProcessCollector(registry=registry)
        prometheus.GCCollector(registry=registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return prometheus.generate_latest(self._registry)

    def count(self, method: str, route: str, status: int, error: str | None, seconds: float) -> None:
        """Count a request; `route` is a path template, and `error` the code of its error, if any."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)
        if error is not None:
            self._errors.labels(route, error).inc()


class ReplicaStatus(NamedTuple):
    """The load of a replica, and its metrics in Prometheus's text format."""

    replica: str
    load: EngineLoad
    metrics: bytes


def merge_metrics(statuses: Sequence[ReplicaStatus]) -> bytes:
    """Return the metrics and the predicted work of all replicas in Prometheus's text format.

    Every sample is labelled with its replica and not summed: a sum would fall when a replica is removed, which
    Prometheus would take for a restarted counter.
    """
    families: dict[str, prometheus.Metric] = {
        "replicas": GaugeMetricFamily("lastword:replicas", "Running replicas", value=len(statuses))
    }
    for unit in ("tokens", "seconds"):
        name = f"lastword:predicted_work_{unit}"
        gauge = families[unit] = GaugeMetricFamily(name, "Predicted work", labels=[REPLICA_LABEL])
        for status in statuses:
            gauge.add_metric([status.replica], getattr(status.load, unit))
    for status in statuses:
        for family in text_string_to_metric_families(status.metrics.decode()):
            merged = families.setdefault(family.name, prometheus.Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, REPLICA_LABEL: status.replica}, sample.value)
    return prometheus.generate_latest(SimpleNamespace(collect=families.values))
