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
MAX_NEW_TOKENS = Advice("max_new_tokens", "N", "which caps the answer")
CANVAS = Advice("length", "fixed:N", "for a canvas of N slots; max_new_tokens caps an answer of predicted length")
STEPS = Advice(
    "unmask", "most-confident:N", "for N tokens per forward pass (slots divided by steps); the recipe fast adapts it"
)
RULE = Advice("unmask", "most-confident", "or another rule; `lastword recipes` lists all")
SAMPLING = Advice("temperature", "T", "above 0; by default the most likely token is taken")
SEED = Advice("seed", "N")
STOP = Advice("stop", "text")
MIN_NEW_TOKENS = Advice("length", note="the length policy, which plans the number of tokens")
SEVERAL = Advice(note="repeat the prompt; every prompt of a list or file gets another seed")
BATCH = Advice("max_batch_size", "N")
DEVICE = Advice("device", "cuda:0", f"{_LOAD}; a model is loaded on one device")
DTYPE = Advice("dtype", "bfloat16", _LOAD)
WEIGHTS = Advice("weights", "fp8", f"{_LOAD} that quantises the layers")
NATIVE = Advice(note="leave it out: the models are implemented here, and no code of a checkpoint is run")
GUIDANCE = Advice(note="use sampling=lastword.Sampling(guidance=X)")
GUIDANCE_SCALE = Advice(note=f"{GUIDANCE.note}, where X is guidance_scale - 1")
END_CONTROL = Advice(note="use sampling=lastword.Sampling(forbid_end=True) or Sampling(end_last=True)")
FRAMES = Advice("frames", "True", "and then Generation.frames, which has the confidence of each token")
UNSUPPORTED = Advice(note="leave it out: it is not supported")
END_IDS = Advice("turn_ends", note=f"{_LOAD}; most token ids come with the checkpoint")
MASK_ID = Advice(note="leave it out: the ids of these tokens come with the checkpoint")
MESSAGES = Advice(note="give the messages as the prompt")
PROMPT = Advice("prompt", note="text, token ids, messages or a list of these")
VALUES = Advice(note="give its values as arguments: max_new_tokens, temperature, top_p, top_k, stop, seed")
STREAM = Advice(note="use lastword.stream(model, prompt)")
MODEL = Advice("name", note="the name or folder of a model, the first argument of lastword.load")
HOME = Advice(note="leave it out and set the environment variable HF_HOME")

# Arguments of transformers, vLLM, lm-evaluation-harness, and the scripts of LLaDA, Dream and Fast-dLLM.
FOREIGN: dict[str, Advice] = {
    "max_new_tokens": Advice("length", "default:N", "for at most N slots per answer"),
    "max_tokens": MAX_NEW_TOKENS,
    "max_completion_tokens": MAX_NEW_TOKENS,
    "max_gen_toks": MAX_NEW_TOKENS,
    "max_length": MAX_NEW_TOKENS._replace(note="which caps the answer; the prompt does not count"),
    "gen_length": CANVAS,
    "gen_len": CANVAS,
    "canvas_length": CANVAS,
    "steps": STEPS,
    "diffusion_steps": STEPS,
    "num_steps": STEPS,
    "num_inference_steps": STEPS,
    "block_length": Advice("block", "N"),
    "block_size": Advice("block", "N"),
    "do_sample": SAMPLING,
    "remasking": RULE,
    "alg": RULE,
    "alg_temp": Advice("unmask", "lowest-entropy:order_temperature=T", "or with another of these rules"),
    "threshold": Advice("unmask", "threshold:0.9"),
    "factor": Advice("unmask", "factor:1.0"),
    "use_cache": Advice("cache", "dual", "or prefix"),
    "dual_cache": Advice("cache", "dual"),
    "cfg": GUIDANCE,
    "guidance": GUIDANCE,
    "cfg_scale": GUIDANCE,
    "guidance_scale": GUIDANCE_SCALE,
    "logits_eos_inf": END_CONTROL,
    "confidence_eos_eot_inf": END_CONTROL,
    "stop_strings": STOP,
    "stop_sequences": STOP,
    "until": STOP,
    "eos_token_id": END_IDS,
    "stop_token_ids": END_IDS,
    "mask_id": MASK_ID,
    "mask_token_id": MASK_ID,
    "pad_token_id": MASK_ID,
    "random_seed": SEED,
    "generator": SEED,
    "num_return_sequences": SEVERAL,
    "n": SEVERAL,
    "batch_size": BATCH,
    "max_num_seqs": BATCH,
    "streamer": STREAM,
    "stream": STREAM,
    "sampling_params": VALUES,
    "generation_config": VALUES,
    "apply_chat_template": Advice("chat", "True", "or False; by default a template is used if there is one"),
    "messages": MESSAGES,
    "conversation": MESSAGES,
    "prompts": PROMPT,
    "inputs": PROMPT,
    "input_ids": PROMPT,
    "prompt_token_ids": PROMPT,
    "attention_mask": Advice(note="leave it out: prompts of a list may have any length, and padding is handled here"),
    "logprobs": FRAMES,
    "output_scores": FRAMES,
    "output_history": FRAMES,
    "num_beams": UNSUPPORTED,
    "repetition_penalty": UNSUPPORTED,
    "presence_penalty": UNSUPPORTED,
    "frequency_penalty": UNSUPPORTED,
    "min_new_tokens": MIN_NEW_TOKENS,
    "min_tokens": MIN_NEW_TOKENS,
    "dtype": DTYPE,
    "torch_dtype": DTYPE,
    "device": DEVICE,
    "device_map": DEVICE,
    "weights": WEIGHTS,
    "tensor_parallel_size": DEVICE,
    "trust_remote_code": NATIVE,
    "attn_implementation": NATIVE,
    "low_cpu_mem_usage": NATIVE,
    "quantization": WEIGHTS,
    "quantization_config": WEIGHTS,
    "load_in_8bit": WEIGHTS,
    "load_in_4bit": WEIGHTS,
    "pretrained": MODEL,
    "pretrained_model_name_or_path": MODEL,
    "tokenizer": Advice(note="leave it out: the tokenizer comes with the checkpoint"),
    "cache_dir": HOME,
    "download_dir": HOME,
    "token": Advice(note="leave it out and set the environment variable HF_TOKEN"),
}
FILE = Advice(note="give the file as an argument")
SAMPLING_JSON = Advice(note="give --temperature, --top-p and --top-k, or a recipe file with other sampling settings")
# The same for options of commands: those with another name than in Python, and those of our earlier versions.
FOREIGN_OPTIONS: dict[str, Advice] = {
    "api_key": Advice("key-file", "PATH", "or set the environment variable LASTWORD_API_KEY"),
    "apply_chat_template": Advice("chat", "", "or --no-chat; by default a template is used if there is one"),
    "batch_size": Advice("batch-size", "N"),
    "cfg": Advice("guidance", "X"),
    "cfg_scale": Advice("guidance", "X"),
    "confirm_run_unsafe_code": Advice("unsafe-code", "", "only if no sandbox works; code is run in a sandbox"),
    "forbid_end": SAMPLING_JSON,
    "gen_kwargs": Advice(note="give --length, --temperature, --top-p, --top-k"),
    "guidance_scale": Advice("guidance", "X", "where X is guidance_scale - 1"),
    "input_file": FILE,
    "limit": Advice("slots", "N"),
    "log_samples": Advice(note="leave it out: every sample is a record"),
    "max_batch_size": Advice("batch-size", "N"),
    "max_model_len": Advice("max-horizon", "N", "and --max-prompt-tokens"),
    "max_num_seqs": Advice("batch-size", "N"),
    "messages": Advice(note='give a .jsonl file with "messages" to `lastword batch`'),
    "model_args": Advice(note="give --model, --dtype, --device and the options of the recipe"),
    "num_fewshot": Advice("shots", "N"),
    "output_path": Advice("out", "PATH"),
    "pretrained": Advice("model", "NAME"),
    "prompts": FILE,
    "reading": Advice("interpretation", "NAME"),
    "request_timeout": Advice("timeout", "SECONDS"),
    "rows": Advice("batch-size", "N", "prompts decoded at the same time; --limit is the number of prompts"),
    "samples": Advice("limit", "N"),
    "sampling": SAMPLING_JSON,
    "served_model_name": Advice("name", "NAME"),
    "stop": Advice(note="leave it out: the tasks define their stop strings"),
    "stream": Advice("live", "", "on a terminal"),
    "streaming": Advice("live", "", "on a terminal"),
    "tokenizer": FOREIGN["tokenizer"],
    "trust_remote_code": NATIVE,
    "use_cache": Advice("cache", "dual", "or prefix; for answers of an earlier run, repeat the command"),
}


def advice_for(name: str, names: Sequence[str], *tables: Mapping[str, Advice]) -> Advice | None:
    """Return what to use instead of a foreign name, or None; `names` are the arguments or options that exist.

    A number of tokens becomes the size of the probe (`limit`, `--slots`) where an answer cannot be capped.
    """
    advice = next((table[name] for table in tables if name in table), None)
    if advice is not None and advice.argument == MAX_NEW_TOKENS.argument and advice.argument not in names:
        advice = FOREIGN["max_new_tokens"]
    if advice is not None and advice.argument == CANVAS.argument and advice.value.endswith(":N"):
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
