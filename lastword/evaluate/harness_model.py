"""LastwordLM, which makes a model with a recipe usable as an `LM` of lm-evaluation-harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from lastword.engines.base import GenerationRequest
from lastword.engines.local import LocalEngine
from lastword.errors import ExtraError, SettingError, install_command
from lastword.evaluate.records import Fields
from lastword.evaluate.run import bos_token
from lastword.evaluate.tasks import Sample
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import check_int

try:
    from lm_eval.api.model import LM
except ImportError as error:
    raise ExtraError(
        "LastwordLM is a model of lm-evaluation-harness, which is not installed: " + install_command("eval")
    ) from error


class LastwordLM(LM):  # type: ignore[misc]  # the harness has no types
    """A model with a recipe for `lm_eval.simple_evaluate`.

    The recipe alone decides how an answer is decoded: a task's `max_gen_toks` is ignored, as in the `LM` classes of
    the models' authors, and a task that requires sampling is rejected if the recipe is greedy. `log` is a list with
    a dictionary per answer: `task`, `doc_id`, horizon, costs, seconds and finish.
    """

    def __init__(
        self, model: Any, recipe: Recipe | None = None, *, max_batch_size: int = 8, bos: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        check_int("LastwordLM", "max_batch_size", max_batch_size, minimum=1)
        self._device = model.device  # LM.device is a read-only property
        self.model, self.recipe = model, resolve(Recipe.coerce(recipe), model)
        self.max_batch_size, self.seed = max_batch_size, seed
        self._bos = bos_token(model.tokenizer) if bos else ""
        self.log: list[Fields] = []

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return an answer per request, cut before its first stop string, and extend `log`."""
        samples, questions = [], {}
        counts: Counter[tuple[str, int]] = Counter()
        for number, request in enumerate(requests):
            context, settings = request.args[:2]
            wants_samples = settings.get("do_sample") and settings.get("temperature", 1.0) > 0
            if wants_samples and not self.recipe.sampling.temperature:
                raise SettingError(
                    f"{request.task_name} wants sampled answers ({settings}), and the recipe is greedy; give the "
                    "recipe a Sampling(temperature=...), or the task do_sample=False"
                )
            until = settings.get("until") or ()
            stop = (until,) if isinstance(until, str) else tuple(until)
            samples.append(Sample(str(request.task_name), int(request.doc_id), context, stop))
            repetition = counts[request.task_name, request.doc_id]  # each repetition of a sample gets another seed
            counts[request.task_name, request.doc_id] += 1
            ids = self.model.tokenizer.encode(self._bos + context)
            questions[number] = GenerationRequest(ids, self.seed + request.doc_id + repetition * 2**20)
        texts, engine = [""] * len(samples), LocalEngine(self.model)
        for replies in engine.generate(questions, self.recipe, max_batch_size=self.max_batch_size):
            for reply in replies:
                sample = samples[reply.key]
                texts[reply.key] = sample.cut(reply.text)
                self.log.append({"task": sample.task, "doc_id": sample.index, **reply.details})
        return texts

    def loglikelihood(self, requests: Sequence[Any]) -> NoReturn:
        """Raise SettingError: decoding with a masked diffusion model does not give the likelihood of an answer."""
        raise SettingError("a task needs likelihoods, and decoding gives texts; choose tasks that generate")

    loglikelihood_rolling = loglikelihood

    def set_cache_hook(self, cache_hook: Any) -> NoReturn:
        """Raise SettingError: the key of the harness's answer cache contains neither model nor recipe."""
        raise SettingError(
            "use_cache was given; the key of the harness's cache lacks model and recipe, so that one recipe "
            "would get the answers of another. `lastword eval` resumes from its own records"
        )

    def apply_chat_template(self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation; without a generation prompt, the answer continues its last turn."""
        return self.model.tokenizer.render(chat_history, continue_last=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self.model.tokenizer.chat_template or ""

    @property
    def tokenizer_name(self) -> str:
        return type(self.model).__name__

    def get_model_info(self) -> Fields:
        """Return the settings that the harness adds to its results."""
        return {"recipe": self.recipe.to_json(), "max_batch_size": self.max_batch_size, "bos": bool(self._bos)}
