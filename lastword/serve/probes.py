"""Length probes of /v1/lengths: their batches, and the share of the engine's time that they get."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

from lastword.decoding.running_batch import ModelProbe
from lastword.models.base import MaskPredictor
from lastword.policies.length.survival import Survival
from lastword.serve.metrics import EngineMetrics
from lastword.serve.request import ServerError
from lastword.serve.scheduler import LEARNING_RATE
from lastword.survival.distribution import LengthDistribution

PROBE_SHARE = 0.25  # of the engine's time, while answers are unfinished


@dataclass(frozen=True, eq=False)
class LengthProbe:
    """A request for the length distribution of a prompt, and its future result."""

    prompt_ids: Tensor
    survival: Survival  # resolved for the prompt
    deadline: float  # monotonic clock, in seconds
    result: Future[LengthDistribution]


class ProbeQueue:
    """The unfinished length probes; only the engine's thread calls methods other than `load`.

    Probes with equal settings share a forward pass. After each batch of probes, answers get so much time that probes
    get at most `PROBE_SHARE` of it while answers are unfinished.
    """

    def __init__(self, model: MaskPredictor, metrics: EngineMetrics) -> None:
        self._model, self._metrics = model, metrics
        self.probes: list[LengthProbe] = []
        self.answer_seconds_due = 0.0  # seconds of answers until the next batch of probes
        self._seconds_per_probe = 0.0  # moving average

    def load(self) -> tuple[float, float]:
        """Return the predicted seconds of all unfinished probes and their tokens; any thread may call this."""
        probes = list(self.probes)
        tokens = sum(len(probe.prompt_ids) + (probe.survival.limit or 0) for probe in probes)
        return self._seconds_per_probe * len(probes), float(tokens)

    def run_batch(self, max_batch_size: int, *, has_answers: bool) -> None:
        """Run one batch of probes, those with the settings of the oldest one, unless it is the turn of answers."""
        message = "the length was not predicted before the timeout of this server; try again later"
        self.end(time.monotonic(), ServerError(message, "deadline_exceeded"))
        if not self.probes or (has_answers and self.answer_seconds_due > 0):
            return
        survival, started = self.probes[0].survival, time.monotonic()
        batch = [probe for probe in self.probes if probe.survival == survival][:max_batch_size]
        running = [probe for probe in batch if probe.result.set_running_or_notify_cancel()]
        if running:
            self._predict(running)
            seconds = time.monotonic() - started
            self.answer_seconds_due = seconds * (1 / PROBE_SHARE - 1)
            average = self._seconds_per_probe or seconds / len(running)
            self._seconds_per_probe = average + LEARNING_RATE * (seconds / len(running) - average)
            self._metrics.probe_seconds.observe(seconds)
            self._metrics.probes.inc(len(running))
        self.probes = [probe for probe in self.probes if probe not in batch]

    def end(self, now: float, error: ServerError) -> None:
        """Remove cancelled probes, and end those whose deadline has passed at `now` with an error."""
        ended = [probe for probe in self.probes if probe.deadline <= now or probe.result.cancelled()]
        for probe in ended:
            if probe.result.running() or probe.result.set_running_or_notify_cancel():
                probe.result.set_exception(error)
        self.probes = [probe for probe in self.probes if probe not in ended]

    def _predict(self, batch: list[LengthProbe]) -> None:
        """Predict all lengths in one forward pass, or one by one if it fails."""
        try:
            lengths = batch[0].survival.lengths(ModelProbe(self._model, [probe.prompt_ids for probe in batch]))
            results = [lengths.row(row) for row in range(len(batch))]
        except Exception as error:
            if len(batch) == 1:
                batch[0].result.set_exception(error)
            else:
                for probe in batch:
                    self._predict([probe])
            return
        for probe, result in zip(batch, results):
            probe.result.set_result(result)
