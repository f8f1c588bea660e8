"""Arguments of functions and options of commands that other libraries have: the error names ours."""

import inspect

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import lastword
from lastword.api import DecodeOptions, GenerateOptions
from lastword.argument_names import FOREIGN, FOREIGN_OPTIONS, Advice
from lastword.cli import app
from lastword.errors import WrongTypeError

CALLS = {
    "generate": lambda **given: lastword.generate("toy", "abc", **given),
    "stream": lambda **given: lastword.stream("toy", "abc", **given),
    "decode": lambda **given: lastword.decode(lastword.load("toy"), [[1]], **given),
    "load": lambda **given: lastword.load("toy", **given),
    "predict_length": lambda **given: lastword.predict_length("toy", "abc", **given),
    "calibrate": lambda **given: lastword.calibrate("toy", ["abc"], **given),
}


@pytest.mark.parametrize(
    ("function", "argument", "advice"),
    [
        # transformers
        ("generate", "max_length", "use max_new_tokens=N, which caps the answer"),
        ("generate", "do_sample", "use temperature=T, above 0"),
        ("generate", "num_beams", "leave it out: it is not supported"),
        ("generate", "stop_strings", "use stop='text'"),
        ("generate", "num_return_sequences", "repeat the prompt"),
        ("generate", "torch_dtype", "use dtype='bfloat16', an argument of lastword.load"),
        ("generate", "eos_token_id", "use turn_ends=..., an argument of lastword.load"),
        ("generate", "streamer", "use lastword.stream(model, prompt)"),
        ("generate", "attention_mask", "leave it out: prompts of a list may have any length"),
        ("stream", "max_length", "use max_new_tokens=N"),
        ("load", "torch_dtype", "use dtype='bfloat16'"),
        ("load", "device_map", "use device='cuda:0'"),
        ("load", "trust_remote_code", "leave it out: the models are implemented here"),
        ("load", "load_in_8bit", "use quantization='int8'"),
        ("load", "cache_dir", "set the environment variable HF_HOME"),
        # vLLM and the OpenAI API
        ("generate", "max_tokens", "use max_new_tokens=N, which caps the answer"),
        ("stream", "max_tokens", "use max_new_tokens=N, which caps the answer"),
        ("decode", "max_tokens", "use max_new_tokens=N, which caps the answer"),
        ("generate", "n", "repeat the prompt"),
        ("generate", "messages", "give the messages as the prompt"),
        ("generate", "sampling_params", "give its values as arguments: max_new_tokens, temperature"),
        ("generate", "tensor_parallel_size", "use device='cuda:0', an argument of lastword.load"),
        ("load", "weights", "use quantization='fp8'"),
        # lm-evaluation-harness
        ("generate", "until", "use stop='text'"),
        ("generate", "max_gen_toks", "use max_new_tokens=N"),
        ("calibrate", "batch_size", "use max_batch_size=N"),
        ("load", "pretrained", "use name=..., the name or folder of a model"),
        # the scripts of LLaDA, Dream and Fast-dLLM
        ("generate", "gen_length", "use length='fixed:N', for a canvas of N slots; max_new_tokens caps"),
        ("generate", "steps", "use unmask='most-confident:N', for N tokens per forward pass"),
        ("generate", "block_length", "use block=N"),
        ("generate", "remasking", "use unmask='most-confident', or another rule"),
        ("generate", "cfg_scale", "use sampling=lastword.Sampling(guidance=X)"),
        ("generate", "guidance", "use sampling=lastword.Sampling(guidance=X)"),
        ("generate", "logits_eos_inf", "use sampling=lastword.Sampling(forbid_end=True)"),
        ("generate", "output_history", "use frames=True, and then Generation.frames"),
        ("generate", "mask_id", "leave it out: the ids of these tokens come with the checkpoint"),
        ("generate", "min_tokens", "use length=..., the length policy"),
        ("generate", "dtype", "use dtype='bfloat16', an argument of lastword.load"),
        ("generate", "alg_temp", "use unmask='lowest-entropy:order_temperature=T'"),
        ("generate", "threshold", "use unmask='threshold:0.9'"),
        ("generate", "use_cache", "use cache='dual', or prefix"),
        ("decode", "steps", "an argument of lastword.generate"),
        ("predict_length", "gen_length", "use limit=N, for N masks after the prompt"),
        ("predict_length", "max_tokens", "use limit=N, for N masks after the prompt"),
        ("calibrate", "temperature_", "known: model, prompts, families"),
        # misspelt
        ("generate", "temprature", "did you mean temperature=?"),
        ("generate", "max_new_token", "did you mean max_new_tokens=?"),
        ("load", "devise", "did you mean device=?"),
        ("calibrate", "famlies", "did you mean families=?"),
        ("predict_length", "xyz", "known: model, prompt, limit, ends, interpretation, chat"),
    ],
)
def test_an_argument_of_another_library_is_refused_with_ours(function, argument, advice):
    with pytest.raises(WrongTypeError) as refused:
        CALLS[function](**{argument: 1})
    assert str(refused.value).startswith(f"{function}() has no argument {argument!r}; ")
    assert advice in str(refused.value)


def test_an_argument_is_refused_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr("lastword.api.load", lambda *_: pytest.fail("loaded"))
    for function in (lastword.generate, lastword.stream, lastword.predict_length):
        with pytest.raises(WrongTypeError, match="has no argument 'steps'"):
            function("toy", "abc", steps=8)


def arguments_of(function):
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}


OURS = {
    *GenerateOptions.__annotations__,
    *(
        name
        for function in (lastword.decode, lastword.load, lastword.predict_length)
        for name in arguments_of(function)
    ),
}


@pytest.mark.parametrize(("name", "advice"), FOREIGN.items(), ids=list(FOREIGN))
def test_the_advice_for_a_foreign_argument_names_one_of_ours(name, advice):
    assert name == "max_new_tokens" or name not in GenerateOptions.__annotations__
    assert advice.argument or advice.note
    assert not advice.argument or advice.argument in OURS


def test_generate_has_every_option_of_stream():
    assert DecodeOptions.__annotations__.items() <= GenerateOptions.__annotations__.items()


# Options


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("generate", "abc", "--max-tokens", "5"), "Use --max-new-tokens N, which caps the answer."),
        (("generate", "abc", "--max_new_tokens", "5"), "Use --max-new-tokens."),
        (("generate", "abc", "--gen-length", "5"), "Use --length fixed:N, for a canvas of N slots"),
        (("generate", "abc", "--steps", "5"), "Use --unmask most-confident:N, for N tokens per forward pass"),
        (("generate", "abc", "--torch-dtype", "x"), "Use --dtype bfloat16, an argument of lastword.load"),
        (("generate", "abc", "--cfg-scale", "1"), "Use --guidance X"),
        (("generate", "abc", "--num-beams", "1"), "Leave it out: it is not supported"),
        (("generate", "abc", "--apply-chat-template"), "Use --chat, or --no-chat; by default"),
        (("generate", "abc", "--temprature", "1"), "Did you mean --temperature?"),
        (("generate", "abc", "--stop-sequences", "x"), "Use --stop text."),
        (("predict", "abc", "--limit", "5"), "Use --slots N."),
        (("eval", "--num-fewshot", "5"), "Use --shots N."),
        (("eval", "--output-path", "x"), "Use --out PATH."),
        (("eval", "--model-args", "x"), "Give --model, --dtype, --device and the options of the recipe."),
        (("eval", "--max-batch-size", "5"), "Use --batch-size N."),
        (("eval", "--rows", "5"), "Use --batch-size N, prompts decoded at the same time; --limit is the number"),
        (("eval", "--samples", "5"), "Use --limit N."),
        (("bench", "--rows", "5"), "Use --batch-size N, prompts decoded at the same time; --limit is the number"),
        (("calibrate", "--reading", "auto"), "Use --interpretation NAME."),
        (("eval", "--max-new-tokens", "5"), "Use --length default:N, for at most N slots per answer."),
        (("eval", "--max-gen-toks", "5"), "Use --length default:N, for at most N slots per answer."),
        (("eval", "--stop", "x"), "Leave it out: the tasks define their stop strings."),
        (("eval", "--log-samples"), "Leave it out: every sample is a record."),
        (("calibrate", "--max-new-tokens", "5"), "Use --slots N, for N masks after the prompt."),
        (("predict", "abc", "--gen-length", "5"), "Use --slots N, for N masks after the prompt."),
        (("generate", "abc", "--sampling", "x"), "Give --temperature, --top-p and --top-k, or a recipe file"),
        (("batch", "--input-file", "x"), "Give the file as an argument."),
        (("serve", "--api-key", "x"), "Use --key-file PATH, or set the environment variable LASTWORD_API_KEY."),
        (("serve", "--langth", "x"), "--help lists all options."),
        (("serve", "--served-model-name", "x"), "Use --name NAME."),
        (("serve", "--max-num-seqs", "5"), "Use --batch-size N."),
        (("serve", "--max-model-len", "5"), "Use --max-horizon N, and --max-prompt-tokens."),
        (("serve", "--request-timeout", "5"), "Use --timeout SECONDS."),
        (("chat", "--max-tokens", "5"), "Use --max-new-tokens N, which caps the answer."),
        (("tables", "--xyz", "5"), "--help lists all options."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_option_of_another_library_is_refused_with_ours(words, advice):
    done = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert done.exit_code == 2
    option = next(word for word in words if word.startswith("--"))
    assert f"No such option: {option}. {advice}" in " ".join(done.output.split())


@pytest.mark.parametrize(("name", "advice"), FOREIGN_OPTIONS.items(), ids=list(FOREIGN_OPTIONS))
def test_the_advice_for_a_foreign_option_names_one_of_ours(name, advice):
    commands = get_command(app).commands.values()
    options = {option for command in commands for parameter in command.params for option in parameter.opts}
    assert advice.argument or advice.note
    assert not advice.argument or f"--{advice.argument.replace('_', '-')}" in options


def test_every_advice_can_be_read():
    for advice in (*FOREIGN.values(), *FOREIGN_OPTIONS.values()):
        assert isinstance(advice, Advice)
        assert not advice.note.endswith(".")
