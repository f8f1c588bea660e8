"""LastwordLM: a model and a recipe for whoever drives lm-evaluation-harness itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from lastword.engines.base import GenerationRequest
from lastword.engines.local import LocalEngine
from lastword.errors import ExtraError, SettingError, install_command
from lastword.evaluate.records import Fields
from lastword.evaluate.task import Sample
from lastword.evaluate.tokens import first_token
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import check_int

try:
    from lm_eval.api.model import LM
except ImportError as missing:
    raise ExtraError(
        f"LastwordLM is a model of lm-evaluation-harness, which is not installed: {install_command('eval')}"
    ) from missing


class LastwordLM(LM):  # type: ignore[misc]  # the harness is not typed
    """`simple_evaluate(model=LastwordLM(model, recipe), ...)`.

    The recipe alone decides how an answer is written: a task's `max_gen_toks` is ignored as the
    authors' classes ignore it, and a request to draw where the recipe does not is refused. What the
    harness has no place for (horizon, costs, seconds, finish) is in `log`, a record per answer with
    `task` and `doc_id`. Nothing is registered under a name, so the harness's own models stay known.
    """

    def __init__(
        self,
        model: Any,
        recipe: Recipe | None = None,
        *,
        rows: int = 8,
        bos: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_int("LastwordLM", "rows", rows, minimum=1)
        self._device = model.device  # `device` itself is read-only
        self.model, self.recipe = model, resolve(Recipe.coerce(recipe), model)
        self.rows, self.seed = rows, seed
        self._begin = first_token(model.tokenizer) if bos else ""
        self.log: list[Fields] = []

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """An answer per request, in their order, cut before the first stop string."""
        samples, questions = [], {}
        times_seen: Counter[tuple[str, int]] = Counter()
        for at, request in enumerate(requests):
            context, settings = request.args[:2]
            self._check(request.task_name, settings)
            until = settings.get("until") or ()
            stop = (until,) if isinstance(until, str) else tuple(until)
            samples.append(Sample(str(request.task_name), int(request.doc_id), context, stop))
            # A request that is repeated wants another draw.
            again = times_seen[request.task_name, request.doc_id]
            times_seen[request.task_name, request.doc_id] += 1
            ids = self.model.tokenizer.encode(self._begin + context)
            questions[at] = GenerationRequest(ids, self.seed + request.doc_id + again * 2**20)
        texts = [""] * len(samples)
        for replies in LocalEngine(self.model).generate(questions, self.recipe, max_batch_size=self.rows):
            for reply in replies:
                sample = samples[reply.key]
                texts[reply.key] = sample.cut(reply.text)
                self.log.append({"task": sample.task, "doc_id": sample.index, **reply.details})
        return texts

    def _check(self, task: str, settings: dict[str, Any]) -> None:
        drawn = settings.get("do_sample") and settings.get("temperature", 1.0) > 0
        if drawn and not self.recipe.sampling.temperature:
            raise SettingError(
                f"{task} asks for drawn answers ({settings}) and the recipe takes the best token; give "
                "the recipe a Sampling(temperature=...), or ask with do_sample=False"
            )

    def loglikelihood(self, requests: Sequence[Any]) -> NoReturn:
        """Refused: a masked diffusion model writes answers and has no likelihood of one."""
        raise SettingError(
            "a task asked for likelihoods, and decoding gives texts; choose tasks that generate"
        )

    loglikelihood_rolling = loglikelihood

    def set_cache_hook(self, cache_hook: Any) -> NoReturn:
        """Refused: the harness keys its answers by prompt alone."""
        raise SettingError(
            "use_cache was given; the harness's cache leaves model and recipe out of its key and would "
            "give one recipe's answers to another. `lastword eval` resumes from its own records"
        )

    def apply_chat_template(
        self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text; a last turn without a prompt behind it is left open."""
        return self.model.tokenizer.render(chat_history, continue_last=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self.model.tokenizer.chat_template or ""

    @property
    def tokenizer_name(self) -> str:
        return type(self.model).__name__

    def get_model_info(self) -> Fields:
        """What the harness writes beside its results."""
        return {"recipe": self.recipe.to_json(), "rows": self.rows, "bos": bool(self._begin)}
