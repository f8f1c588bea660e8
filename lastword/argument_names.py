"""Arguments and options of other libraries, and the errors that name ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lastword.errors import WrongTypeError


class Advice(NamedTuple):
    """The replacement of a foreign argument: our argument with a value, and a note."""

    argument: str = ""  # as in Python; the option of the command line is the same with dashes
    value: str = "..."  # capital letters stand for a number
    note: str = ""


MIN_SIMILARITY = 0.7  # of a misspelt option and the one that is suggested
_LOAD = "an argument of lastword.load"
_GUIDANCE = "use sampling=lastword.Sampling(guidance=X)"
_CHAT = "a template is used if there is one"

# Arguments of transformers, vLLM, lm-evaluation-harness, and the scripts of LLaDA, Dream and Fast-dLLM.
_ARGUMENTS = {
    "max_new_tokens": Advice("length", "default:N", "for at most N slots per answer"),
    "max_tokens max_completion_tokens max_gen_toks": Advice("max_new_tokens", "N", "which caps the answer"),
    "max_length": Advice("max_new_tokens", "N", "which caps the answer; the prompt does not count"),
    "gen_length gen_len canvas_length": Advice(
        "length", "fixed:N", "for a canvas of N slots; max_new_tokens caps an answer of predicted length"
    ),
    "steps diffusion_steps num_steps num_inference_steps": Advice(
        "unmask",
        "most-confident:N",
        "for N tokens per forward pass (slots divided by steps); the recipe fast adapts it",
    ),
    "block_length block_size": Advice("block", "N"),
    "do_sample": Advice("temperature", "T", "above 0; by default the most likely token is taken"),
    "remasking alg": Advice("unmask", "most-confident", "or another rule; `lastword recipes` lists all"),
    "alg_temp": Advice("unmask", "lowest-entropy:order_temperature=T", "or with another of these rules"),
    "threshold": Advice("unmask", "threshold:0.9"),
    "factor": Advice("unmask", "factor:1.0"),
    "use_cache": Advice("cache", "dual", "or prefix"),
    "dual_cache": Advice("cache", "dual"),
    "cfg guidance cfg_scale": Advice(note=_GUIDANCE),
    "guidance_scale": Advice(note=f"{_GUIDANCE}, where X is guidance_scale - 1"),
    "logits_eos_inf confidence_eos_eot_inf": Advice(
        note="use sampling=lastword.Sampling(forbid_end=True) or Sampling(end_last=True)"
    ),
    "stop_strings stop_sequences until": Advice("stop", "text"),
    "eos_token_id stop_token_ids": Advice("turn_ends", note=f"{_LOAD}; most token ids come with the checkpoint"),
    "mask_id mask_token_id pad_token_id": Advice(note="leave it out: the ids of these tokens come with the checkpoint"),
    "random_seed generator": Advice("seed", "N"),
    "num_return_sequences n": Advice(note="repeat the prompt; every prompt of a list or file gets another seed"),
    "batch_size max_num_seqs": Advice("max_batch_size", "N"),
    "streamer stream": Advice(note="use lastword.stream(model, prompt)"),
    "sampling_params generation_config": Advice(
        note="give its values as arguments: max_new_tokens, temperature, top_p, top_k, stop, seed"
    ),
    "apply_chat_template": Advice("chat", "True", f"or False; by default {_CHAT}"),
    "messages conversation": Advice(note="give the messages as the prompt"),
    "prompts inputs input_ids prompt_token_ids": Advice("prompt", note="text, token ids, messages or a list of these"),
    "attention_mask": Advice(note="leave it out: prompts of a list may have any length, and padding is handled here"),
    "logprobs output_scores output_history": Advice(
        "frames", "True", "and then Generation.frames, which has the confidence of each token"
    ),
    "num_beams repetition_penalty presence_penalty frequency_penalty": Advice(note="leave it out: it is not supported"),
    "min_new_tokens min_tokens": Advice("length", note="the length policy, which plans the number of tokens"),
    "dtype torch_dtype": Advice("dtype", "bfloat16", _LOAD),
    "device device_map tensor_parallel_size": Advice("device", "cuda:0", f"{_LOAD}; a model is loaded on one device"),
    "weights quantization quantization_config load_in_4bit": Advice(
        "quantization", "fp8", f"{_LOAD} that quantises the layers"
    ),
    "load_in_8bit": Advice("quantization", "int8", f"{_LOAD}, or fp8 on a GPU"),
    "trust_remote_code attn_implementation low_cpu_mem_usage": Advice(
        note="leave it out: the models are implemented here, and no code of a checkpoint is run"
    ),
    "pretrained pretrained_model_name_or_path": Advice(
        "name", note="the name or folder of a model, the first argument of lastword.load"
    ),
    "tokenizer": Advice(note="leave it out: the tokenizer comes with the checkpoint"),
    "cache_dir download_dir": Advice(note="leave it out and set the environment variable HF_HOME"),
    "token": Advice(note="leave it out and set the environment variable HF_TOKEN"),
}
# The same for options of commands: those with another name than in Python, and those of our earlier versions.
_OPTIONS = {
    "api_key": Advice("key-file", "PATH", "or set the environment variable LASTWORD_API_KEY"),
    "apply_chat_template": Advice("chat", "", f"or --no-chat; by default {_CHAT}"),
    "batch_size max_batch_size max_num_seqs": Advice("batch-size", "N"),
    "cfg cfg_scale": Advice("guidance", "X"),
    "guidance_scale": Advice("guidance", "X", "where X is guidance_scale - 1"),
    "confirm_run_unsafe_code": Advice("unsafe-code", "", "only if no sandbox works; code is run in a sandbox"),
    "forbid_end sampling": Advice(
        note="give --temperature, --top-p and --top-k, or a recipe file with other sampling settings"
    ),
    "gen_kwargs": Advice(note="give --length, --temperature, --top-p, --top-k"),
    "input_file prompts": Advice(note="give the file as an argument"),
    "limit": Advice("slots", "N"),
    "log_samples": Advice(note="leave it out: every sample is a record"),
    "max_model_len": Advice("max-horizon", "N", "and --max-prompt-tokens"),
    "messages": Advice(note='give a .jsonl file with "messages" to `lastword batch`'),
    "model_args": Advice(note="give --model, --dtype, --device and the options of the recipe"),
    "num_fewshot": Advice("shots", "N"),
    "output_path": Advice("out", "PATH"),
    "pretrained": Advice("model", "NAME"),
    "reading": Advice("interpretation", "NAME"),
    "request_timeout": Advice("timeout", "SECONDS"),
    "rows": Advice("batch-size", "N", "prompts decoded at the same time; --limit is the number of prompts"),
    "samples": Advice("limit", "N"),
    "served_model_name": Advice("name", "NAME"),
    "stop": Advice(note="leave it out: the tasks define their stop strings"),
    "stream streaming": Advice("live", "", "on a terminal"),
    "use_cache": Advice("cache", "dual", "or prefix; for answers of an earlier run, repeat the command"),
}


def _by_name(table: dict[str, Advice]) -> dict[str, Advice]:
    """Return a table with one name per key, given one whose keys are names separated by spaces."""
    return {name: advice for names, advice in table.items() for name in names.split()}


FOREIGN, FOREIGN_OPTIONS = _by_name(_ARGUMENTS), _by_name(_OPTIONS)


def advice_for(name: str, names: Sequence[str], *tables: Mapping[str, Advice]) -> Advice | None:
    """Return what to use instead of a foreign name, or None; `names` are the arguments or options that exist.

    A number of tokens becomes the size of the probe (`limit`, `--slots`) where an answer cannot be capped.
    """
    advice = next((table[name] for table in tables if name in table), None)
    if advice is not None and advice.argument == "max_new_tokens" and advice.argument not in names:
        advice = FOREIGN["max_new_tokens"]
    if advice is not None and advice.argument == "length" and advice.value.endswith(":N"):
        advice = next(
            (Advice(size, "N", "for N masks after the prompt") for size in ("slots", "limit") if size in names), advice
        )
    return advice


def unknown_argument(owner: str, name: str, known: Iterable[str]) -> WrongTypeError:
    """Return the error for an argument that `owner` does not have, with the argument to use instead."""
    names = [*known]
    if (entry := advice_for(name, names, FOREIGN)) is not None:
        argument, value, note = entry
        literal = value if value.isupper() or value in ("...", "True") else repr(value)
        use = f"use {argument}={literal}" if argument else ""
        is_elsewhere = bool(argument) and argument not in names and not note.startswith(_LOAD)
        text = ", ".join(filter(None, (use, "an argument of lastword.generate" * is_elsewhere, note)))
    else:
        near = difflib.get_close_matches(name, names, n=1)
        text = f"did you mean {near[0]}=?" if near else f"known: {', '.join(names)}"
    return WrongTypeError(f"{owner}() has no argument {name!r}; {text}")


def unknown_option(option: str, known: Iterable[str]) -> str:
    """Return the message for an option that a command does not have, with the option to use instead."""
    names, name = [option.lstrip("-").replace("-", "_") for option in known], option.lstrip("-").replace("-", "_")
    # `--limit` is a number of prompts, so only `--slots` can be the size of a probe.
    sizes = [known_name for known_name in names if known_name != "limit"]
    entry = advice_for(name, sizes, FOREIGN_OPTIONS, FOREIGN)
    argument, value, note = entry or Advice()
    near = difflib.get_close_matches(name, names, n=1, cutoff=MIN_SIMILARITY)
    if name in names:
        text = f"Use {_dashed(name)}."
    elif argument.replace("-", "_") in names:
        use = f"Use {_dashed(argument)} {value}".rstrip(" .")
        text = f"{use}, {note}." if note else f"{use}."
    elif note and not argument:
        text = f"{note[0].upper()}{note[1:]}."
    else:
        text = f"Did you mean {_dashed(near[0])}?" if near and entry is None else "--help lists all options."
    return f"No such option: {option}. {text}"


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"
