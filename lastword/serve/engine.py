"""Engine: the thread that owns the model."""

from __future__ import annotations

import asyncio
import time
from queue import SimpleQueue
from threading import Thread

from lastword.decoding import decode
from lastword.errors import LastwordError
from lastword.generation import _generation
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.serve.committed import Committed
from lastword.serve.errors import Draining, Faulty
from lastword.serve.job import Answer, Job, Planned, Text
from lastword.serve.limits import Limits
from lastword.serve.stream import Stream


class Engine:
    """(A placeholder of the interface: one job at a time.)"""

    def __init__(self, model: MaskPredictor, limits: Limits = Limits()) -> None:
        self.model, self.limits = model, limits
        self.state = "starting"  # ready, draining, stopped
        self._jobs: SimpleQueue[Stream | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="lastword-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.state = "ready"

    async def stop(self) -> None:
        self.state = "draining"
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, self.limits.drain)
        self.state = "stopped"

    def submit(self, *jobs: Job) -> list[Stream]:
        """All of them or none. From the event loop; raises a Refusal."""
        if self.state != "ready":
            raise Draining("the server is stopping; ask another one")
        loop = asyncio.get_running_loop()
        streams = [Stream(job, loop) for job in jobs]
        for stream in streams:
            self._jobs.put(stream)
        return streams

    def _run(self) -> None:
        while (stream := self._jobs.get()) is not None:
            try:
                self._answer(stream)
            except LastwordError as refused:
                stream.put(refused)
            except Exception as error:
                stream.put(Faulty(str(error)))

    def _answer(self, stream: Stream) -> None:
        job, began = stream.job, time.perf_counter()
        committed = Committed(self.model.tokenizer, self.model.ids, job.stop)  # type: ignore[arg-type]
        dice = Dice([job.seed], self.model.device)
        for number, step in enumerate(decode(self.model, [list(job.prompt)], job.recipe, dice=dice)):
            if stream.cancelled:
                return
            if not number:
                horizon = int(step.plan.horizon[0])
                stream.put(Planned(step.plan.lengths, horizon, step.recipe.most_passes(horizon)))
            if step.done:
                seconds = time.perf_counter() - began
                generation = _generation(
                    self.model, step.done[0], step.recipe, list(job.prompt), seconds
                )
                if more := committed.read(generation.canvas, complete=True):
                    stream.put(Text(more))
                cut = generation.finish.name != "ENDED" and committed.stopped is None
                text, tokens = committed.text, len(committed.tokens)
                stream.put(
                    Answer(generation, text, tokens, cut, committed.stopped, 0.0, seconds)
                )
            elif more := committed.read(step.canvas.answer_of(0)):
                stream.put(Text(more))
