"""Arguments and options of other libraries, and the errors that name ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

from lastword.errors import WrongTypeError


class Advice(NamedTuple):
    """What to use instead of a foreign argument: our argument with a value, and a note."""

    argument: str = ""  # as in Python; the option of the command line is the same with dashes
    value: str = "..."  # capital letters stand for a number
    note: str = ""


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
SEVERAL = Advice(note="repeat the prompt; every prompt of a list or file gets another seed")
BATCH = Advice("max_batch_size", "N")
DEVICE = Advice("device", "cuda:0", f"{_LOAD}; a model is loaded on one device")
DTYPE = Advice("dtype", "bfloat16", _LOAD)
WEIGHTS = Advice("weights", "fp8", f"{_LOAD} that quantises the layers")
NATIVE = Advice(note="leave it out: the models are implemented here, and no code of a checkpoint is run")
GUIDANCE = Advice("guidance", "X", "in Python sampling=lastword.Sampling(guidance=X)")
GUIDANCE_SCALE = GUIDANCE._replace(note=f"{GUIDANCE.note}, where X is guidance_scale - 1")
UNSUPPORTED = Advice(note="leave it out: it is not supported")
END_IDS = Advice("turn_ends", note=f"{_LOAD}; most token ids come with the checkpoint")
MESSAGES = Advice(note="give the messages as the prompt")
PROMPT = Advice("prompt", note="text, token ids, messages or a list of these")
VALUES = Advice(note="give its values as arguments: max_new_tokens, temperature, top_p, top_k, stop, seed")
STREAM = Advice(note="use lastword.stream(model, prompt)")
MODEL = Advice("name", note="the name or folder of a model, the first argument of lastword.load")
HOME = Advice(note="leave it out and set the environment variable HF_HOME")

# Arguments of transformers, vLLM, lm-evaluation-harness, and the scripts of LLaDA, Dream and Fast-dLLM.
FOREIGN: dict[str, Advice] = {
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
    "cfg_scale": GUIDANCE,
    "guidance_scale": GUIDANCE_SCALE,
    "stop_strings": STOP,
    "stop_sequences": STOP,
    "until": STOP,
    "eos_token_id": END_IDS,
    "stop_token_ids": END_IDS,
    "mask_id": END_IDS,
    "mask_token_id": END_IDS,
    "pad_token_id": END_IDS,
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
    "logprobs": Advice(note="leave it out; the frames of lastword.stream have the confidence of each token"),
    "num_beams": UNSUPPORTED,
    "repetition_penalty": UNSUPPORTED,
    "presence_penalty": UNSUPPORTED,
    "frequency_penalty": UNSUPPORTED,
    "min_new_tokens": Advice("length", note="the length policy, which plans the number of tokens"),
    "torch_dtype": DTYPE,
    "device_map": DEVICE,
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
# The same for options of commands: those with another name than in Python, and those of our earlier versions.
FOREIGN_OPTIONS: dict[str, Advice] = {
    "apply_chat_template": Advice("chat", "", "or --no-chat; by default a template is used if there is one"),
    "batch_size": Advice("batch-size", "N"),
    "confirm_run_unsafe_code": Advice("unsafe-code", "", "only if no sandbox works; code is run in a sandbox"),
    "gen_kwargs": Advice(note="give --length, --temperature, --top-p, --top-k"),
    "limit": Advice("slots", "N"),
    "max_batch_size": Advice("batch-size", "N"),
    "max_model_len": Advice("max-horizon", "N", "and --max-prompt-tokens"),
    "max_new_tokens": Advice("length", "default:N", "for at most N slots per answer"),
    "max_num_seqs": Advice("batch-size", "N"),
    "max_tokens": MAX_NEW_TOKENS,
    "messages": Advice(note='give a .jsonl file with "messages" to `lastword batch`'),
    "model_args": Advice(note="give --model, --dtype, --device and the options of the recipe"),
    "num_fewshot": Advice("shots", "N"),
    "output_path": Advice("out", "PATH"),
    "pretrained": Advice("model", "NAME"),
    "prompts": Advice(note="give the file as an argument"),
    "reading": Advice("interpretation", "NAME"),
    "request_timeout": Advice("timeout", "SECONDS"),
    "rows": Advice("batch-size", "N", "prompts decoded at the same time; --limit is the number of prompts"),
    "samples": Advice("limit", "N"),
    "served_model_name": Advice("name", "NAME"),
    "stream": Advice("live", "", "on a terminal"),
    "tokenizer": FOREIGN["tokenizer"],
    "trust_remote_code": NATIVE,
    "use_cache": Advice("cache", "dual", "or prefix; for answers of an earlier run, repeat the command"),
}


def unknown_argument(owner: str, name: str, known: Iterable[str]) -> WrongTypeError:
    """Return the error for an argument that `owner` does not have, with the argument to use instead."""
    names = [*known]
    if (entry := FOREIGN.get(name)) is not None:
        argument, value, note = entry
        shown = value if value.isupper() or value in ("...", "True") else repr(value)
        use = f"use {argument}={shown}" if argument else ""
        is_elsewhere = bool(argument) and argument not in names and not note.startswith(_LOAD)
        advice = ", ".join(filter(None, (use, "an argument of lastword.generate" * is_elsewhere, note)))
    else:
        near = difflib.get_close_matches(name, names, n=1)
        advice = f"did you mean {near[0]}=?" if near else f"known: {', '.join(names)}"
    return WrongTypeError(f"{owner}() has no argument {name!r}; {advice}")


def unknown_option(option: str, known: Iterable[str]) -> str:
    """Return the message for an option that a command does not have, with the option to use instead."""
    names, name = [*known], option.lstrip("-").replace("-", "_")
    dashed = f"--{name.replace('_', '-')}"
    entry = FOREIGN_OPTIONS.get(name) or FOREIGN.get(name)
    argument, value, note = entry or Advice()
    ours = f"--{argument.replace('_', '-')}"
    near = difflib.get_close_matches(dashed, names, n=1, cutoff=0.5)
    if dashed in names:
        advice = f"Use {dashed}."
    elif ours in names:
        use = f"Use {ours} {value}".rstrip(" .")
        advice = f"{use}, {note}." if note else f"{use}."
    elif note and not argument:
        advice = f"{note[0].upper()}{note[1:]}."
    else:
        advice = f"Did you mean {near[0]}?" if near and entry is None else "--help lists all options."
    return f"No such option: {option}. {advice}"
