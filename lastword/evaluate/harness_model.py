"""LastwordLM, which makes a model with a recipe usable as an `LM` of lm-evaluation-harness.

`python -m lastword.evaluate.harness --model lastword --model_args pretrained=NAME,recipe=fast` uses it from the
harness's own command line.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import torch

from lastword.api import Model, as_model
from lastword.engines.base import TOO_LONG, GenerationRequest
from lastword.engines.local import MIN_SLOTS, LocalEngine
from lastword.errors import EngineError, SettingError, import_extra
from lastword.evaluate.records import Fields
from lastword.evaluate.run import bos_token, encode_with_special_tokens
from lastword.evaluate.tasks import Sample
from lastword.models.load import load
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import check_int, checks_arguments

LM: Any = import_extra("lm_eval.api.model", "eval", "LastwordLM").api.model.LM
_LOG = logging.getLogger(__name__)


def _batch_size(batch_size: int | str | None, max_batch_size: int | None) -> int:
    """Return the number of answers that are decoded at once; on the harness's command line, `batch_size` is text."""
    if max_batch_size is not None:
        check_int("LastwordLM", "max_batch_size", max_batch_size, minimum=1)
    if batch_size is None or batch_size == "auto":
        return max_batch_size or 8
    rows = int(batch_size) if isinstance(batch_size, str) and batch_size.isdecimal() else batch_size
    check_int("LastwordLM", "batch_size", rows, minimum=1)
    return int(rows)


class LastwordLM(LM):  # type: ignore[misc]  # the harness has no types
    """A model with a recipe for `lm_eval.simple_evaluate`.

    The recipe alone decides how an answer is decoded: a task's `max_gen_toks` is ignored, as in the `LM` classes of
    the models' authors, and a task that requires sampling is rejected if the recipe is greedy. `log` is a list with
    a dictionary per answer: `task`, `doc_id`, horizon, costs, seconds and finish.

    Args:
        model: a loaded model, or its name or folder; on the harness's command line, `pretrained` is its name.
        recipe: a recipe or its name. The arguments from `length` to `top_k` override parts of it, as in
            `lastword.generate`.
        pretrained: the name or folder of a model, instead of `model`.
        batch_size: the number of answers that are decoded at once; "auto" means 8. The harness passes 1 by default.
        max_batch_size: the number of answers that are decoded at once if `batch_size` is not given.
        bos: begin each prompt with the tokenizer's BOS token.
        seed: the seed of a row is `seed` plus the index of its sample.
        device: as in `lastword.load`, like `dtype`, `quantization` and `calibration`.
    """

    @checks_arguments()
    def __init__(
        self,
        model: Model | None = None,
        recipe: Recipe | str | None = None,
        *,
        pretrained: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        bos: bool = False,
        seed: int = 0,
        device: str = "auto",
        dtype: str = "auto",
        quantization: str | None = None,
        calibration: str | None = "auto",
        length: Any = None,
        unmask: Any = None,
        commit: Any = None,
        cache: Any = None,
        block: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
    ) -> None:
        super().__init__()
        if (model is None) == (pretrained is None):
            raise SettingError("LastwordLM needs one model: give pretrained=NAME (or model, from Python)")
        rows = _batch_size(batch_size, max_batch_size)
        chosen = Recipe.coerce(recipe).with_choices(
            length=length, unmask=unmask, commit=commit, cache=cache, block=block
        )
        chosen = chosen.with_sampling(temperature=temperature, top_p=top_p, top_k=top_k)
        if device == "cuda:0" and not torch.cuda.is_available():
            device = "auto"  # the harness gives cuda:0 by default
        if pretrained is not None:
            model = load(pretrained, device, dtype, calibration=calibration, quantization=quantization)
        self.model: Any = as_model(cast(Model, model))
        self._device = self.model.device  # LM.device is a read-only property
        self.recipe, self.max_batch_size, self.seed = resolve(chosen, self.model), rows, seed
        self._bos = bos_token(self.model.tokenizer) if bos else ""
        self._used_template = False
        self.log: list[Fields] = []

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return an answer per request, cut before its first stop string, and extend `log`."""
        if requests and self.chat_template() and not self._used_template:
            _LOG.warning("the model has a chat template and the prompts are plain text; give --apply_chat_template")
        samples, questions = [], {}
        counts: Counter[tuple[str, int]] = Counter()
        warned = False
        for number, request in enumerate(requests):
            context, settings = request.args[:2]
            wants_samples = settings.get("do_sample") and settings.get("temperature", 1.0) > 0
            if wants_samples and not self.recipe.sampling.temperature:
                raise SettingError(
                    f"{request.task_name} wants sampled answers ({settings}), and the recipe is greedy; give "
                    "temperature=T in --model_args, or the task do_sample=False"
                )
            if not wants_samples and (settings.get("temperature") or 0) > 0 and not warned:
                warned = True
                _LOG.warning("the task's temperature is ignored (%s); give temperature=T in --model_args", settings)
            until = settings.get("until") or ()
            stop = (until,) if isinstance(until, str) else tuple(until)
            samples.append(Sample(str(request.task_name), int(request.doc_id), context, stop))
            repetition = counts[request.task_name, request.doc_id]  # each repetition of a sample gets another seed
            counts[request.task_name, request.doc_id] += 1
            ids = encode_with_special_tokens(self.model.tokenizer, self._bos + context)
            questions[number] = GenerationRequest(ids, self.seed + request.doc_id + repetition * 2**20)
        first = len(self.log)
        texts, engine = [""] * len(samples), LocalEngine(self.model)
        for replies in engine.generate(questions, self.recipe, max_batch_size=self.max_batch_size):
            for reply in replies:
                sample = samples[reply.key]
                if reply.error is not None:
                    raise EngineError(f"{sample.task} {sample.index} was not answered ({reply.error})")
                texts[reply.key] = sample.cut(reply.text)
                self.log.append({"task": sample.task, "doc_id": sample.index, **reply.details})
        if too_long := sum(line["finish"] == TOO_LONG for line in self.log[first:]):
            _LOG.warning(
                "%d of %d prompts leave fewer than %d slots of the model's context; they were not decoded and have an "
                "empty answer",
                too_long,
                len(samples),
                MIN_SLOTS,
            )
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
        self._used_template = True
        return self.model.tokenizer.render(chat_history, continue_last=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self.model.tokenizer.chat_template or ""

    @property
    def tokenizer_name(self) -> str:
        return type(self.model).__name__

    def get_model_info(self) -> Fields:
        """Return the settings that the harness adds to its results."""
        return {"recipe": self.recipe.to_json(), "max_batch_size": self.max_batch_size, "bos": bool(self._bos)}
