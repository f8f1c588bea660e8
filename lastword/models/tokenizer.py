"""Tokenizer and chat template of a checkpoint folder.

LLaDA publishes a complete `tokenizer.json`; Dream publishes `vocab.json` and `merges.txt`, from which a byte-level BPE
tokenizer is built as in Qwen2. `encode` adds no special tokens; callers and chat templates do.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import jinja2
import tokenizers
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from lastword.errors import CheckpointError, PromptError
from lastword.io.schema import read_bytes, read_json_object
from lastword.models.config import is_plain_file

_TOKENIZER, _VOCAB, _MERGES = "tokenizer.json", "vocab.json", "merges.txt"
_CONFIG, _SPECIAL, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_TEMPLATE = "chat_template.jinja"
_TOKEN_KEYS = {"content", "special", "lstrip", "rstrip", "normalized", "single_word"}

# Qwen2 splits text into these pieces before BPE merges: contractions; letters, with at most one preceding sign; single
# digits; punctuation with the newlines after it; newlines; spaces, except the one before a word.
QWEN2_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

LONG_TEXT = 10_000  # characters
MAX_NFC_RATIO = 4  # characters before and after NFC, rounded up: at most 3 become 1
MARK = "\ue000"  # a character that Unicode leaves undefined

# Limits of a chat template, which is code from a checkpoint.
MAX_TEMPLATE_LENGTH = 10**6  # characters; published templates have a few thousand
MAX_TEMPLATE_LINES = 2 * 10**6  # lines of Python executed per conversation: 1 to 2 seconds
MAX_PRODUCT = 10**6  # largest number, or length of a string or list, that a multiplication may return


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """The tokenizer of a checkpoint: vocabulary, special tokens and chat template.

    In text and messages, the spelling of a special token, such as `<|eot_id|>`, is plain text, so text from untrusted
    users cannot end a turn. The authors' tokenizers encode it as the token, as `encode_with_special_tokens` does.
    """

    core: tokenizers.Tokenizer
    bos: str | None = None
    eos: str | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        self.core.no_truncation()  # tokenizer.json may enable truncation and padding
        self.core.no_padding()

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer | None:
        """Return the tokenizer of a checkpoint folder, or None if the folder has no tokenizer file."""
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder; give the folder of a checkpoint")
        names = (_TOKENIZER, _VOCAB, _MERGES, _CONFIG, _SPECIAL, _ADDED, _TEMPLATE)
        present = [name for name in names if is_plain_file(folder / name)]
        if not present:
            return None
        try:
            core = _read_core(folder, present)
            settings = _read_settings(folder)
            _add_tokens(core, settings, _read_object(folder / _ADDED))
            bos, eos = (_token_text(settings.get(name)) for name in ("bos_token", "eos_token"))
            return cls(core, bos, eos, _chat_template(folder, settings))
        except Exception as error:  # the Rust library raises plain Exception
            raise CheckpointError(
                f"the tokenizer in {folder} ({', '.join(present)}) cannot be used "
                f"({type(error).__name__}: {error}); copy its files again from the checkpoint"
            ) from error

    @cached_property
    def size(self) -> int:
        """The highest token id plus one; the model's embedding may have more rows."""
        return max(self.core.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, spelled as in the vocabulary, or None if there is no such token."""
        return self.core.token_to_id(token)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """A pattern that matches the spelling of special tokens."""
        tokens = [token.content for token in self.core.get_added_tokens_decoder().values() if token.special]
        return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")

    @cached_property
    def _core_copy(self) -> tokenizers.Tokenizer:
        return copy.deepcopy(self.core)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; bos and eos are not added, and special tokens that it spells are plain text."""
        if not isinstance(text, str) or not self._special.search(text):
            return self.encode_with_special_tokens(text)
        core = self._core_copy
        if not core.encode_special_tokens:  # copies lose it; setting it waits for the encodings of other threads
            core.encode_special_tokens = True
        return self._ids(core, text)

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Return the ids of a text, such as a rendered template, whose special tokens are encoded as such."""
        return self._ids(self.core, text)

    @staticmethod
    def _ids(core: tokenizers.Tokenizer, text: str) -> list[int]:
        try:
            if len(text) < LONG_TEXT:
                return list(core.encode(text, add_special_tokens=False).ids)
            # Unlike `encode`, this runs while other Python threads run.
            return list(core.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except TypeError as error:
            raise PromptError(
                f"{text!r:.80} cannot be encoded, only a str of whole Unicode characters can; "
                "convert it, and replace lone surrogates (\\ud800 to \\udfff)"
            ) from error

    def fits(self, text: str, tokens: int) -> bool:
        """Return False if a text is certainly longer than a number of tokens; the text is not encoded.

        Tokenizers that drop text, such as one that strips spaces, may encode more.
        """
        return len(text) <= tokens * self._longest * MAX_NFC_RATIO

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.core.get_vocab(with_added_tokens=True)), default=1)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of ids; ids without a token, such as spare rows of the embedding, are skipped."""
        known = [index for index in ids if 0 <= index < self.size]
        return self.core.decode(known, skip_special_tokens=skip_special)

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]:
        """Return the ids of a conversation formatted with the checkpoint's chat template; see `render`.

        Only the template's special tokens are encoded as such: those in messages get a mark, which is removed after
        the text was split at the template's.
        """
        text = self.render(messages, continue_last=continue_last)
        if not any(self._special.search(message["content"]) for message in messages):
            return self.encode_with_special_tokens(text)
        mark = MARK
        while mark in text:
            mark += mark
        inserted = partial(self._special.sub, lambda match: match[0][0] + mark + match[0][1:])
        marked = [{**message, "content": inserted(message["content"])} for message in messages]
        pieces = re.split(f"({self._special.pattern})", self.render(marked, continue_last=continue_last))
        encoders = (self.encode, self.encode_with_special_tokens)  # every second piece is a special token
        return [index for n, piece in enumerate(pieces) for index in encoders[n % 2](piece.replace(mark, ""))]

    def render(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> str:
        """Return the text of a conversation formatted with the checkpoint's chat template.

        `continue_last` leaves the last turn open, so that the answer continues it.
        """
        if self.chat_template is None:
            raise PromptError(
                "messages were given to a model without a (default) chat template; give plain text (without "
                "--chat or --apply_chat_template), take a model that `lastword models` marks chat, or put the "
                f"template into its folder as {_TEMPLATE}"
            )
        if not messages:
            raise PromptError("an empty list of messages was given; give at least one message")
        for index, message in enumerate(messages):
            fields = message if isinstance(message, Mapping) else {}
            if not all(isinstance(fields.get(field), str) for field in ("role", "content")):
                expected = "a mapping of role and content to text; give {'role': ..., 'content': ...}"
                raise PromptError(f"message {index} is {message!r:.80}, not {expected}")
        try:
            template = compile_template(self.chat_template)
            with _limit_lines(MAX_TEMPLATE_LINES):
                text = template.render(
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=not continue_last,
                    bos_token=self.bos or "",  # a template would print None as "None"
                    eos_token=self.eos or "",
                    raise_exception=_raise_in_template,
                    tools=None,
                )
        except Exception as error:  # a template may raise any exception
            raise PromptError(
                f"the chat template refused messages from {', '.join(m['role'] for m in messages)} "
                f"({error}); give roles in an order it allows, usually user and assistant in turn"
            ) from error
        return _open_turn(text, messages[-1]["content"]) if continue_last else text


def read_chat_template(folder: Path) -> str | None:
    """Return a checkpoint's chat template, or None, without reading the vocabulary."""
    try:
        return _chat_template(folder, _read_settings(folder))
    except Exception as error:  # malformed settings raise various exceptions
        raise CheckpointError(
            f"the chat template in {folder} cannot be used ({type(error).__name__}: {error}); copy its files "
            "again from the checkpoint"
        ) from error


def _read_core(folder: Path, present: Sequence[str]) -> tokenizers.Tokenizer:
    """Return the tokenizer of tokenizer.json, or a byte-level BPE of vocabulary and merges as in Qwen2."""
    if _TOKENIZER in present:
        return tokenizers.Tokenizer.from_buffer(read_bytes(folder / _TOKENIZER))
    if _VOCAB not in present or _MERGES not in present:
        raise ValueError(f"it needs {_TOKENIZER}, or {_VOCAB} and {_MERGES}")
    read_json_object(folder / _VOCAB)  # raises for a file that is too large; the Rust library does not
    read_bytes(folder / _MERGES)
    core = byte_level(models.BPE.from_file(str(folder / _VOCAB), str(folder / _MERGES)), QWEN2_PIECES)
    core.normalizer = normalizers.NFC()
    return core


def byte_level(bpe: models.BPE, pieces: str) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer that splits text into `pieces`; ValueError if a single-byte token is missing."""
    core = tokenizers.Tokenizer(bpe)
    missing = set(pre_tokenizers.ByteLevel.alphabet()) - core.get_vocab().keys()
    if missing:  # the Rust library would drop such bytes silently
        raise ValueError(f"the vocabulary lacks {len(missing)} of the 256 single-byte tokens")
    split = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    core.decoder = decoders.ByteLevel()
    return core


def _add_tokens(core: tokenizers.Tokenizer, settings: dict[str, Any], added: dict[str, Any]) -> None:
    """Add the tokens listed in the settings and added_tokens.json; ValueError if one gets another id than listed."""
    roles = [settings[name] for name in settings if name.endswith("_token")]
    special = {_token_text(role) for role in [*roles, *(settings.get("additional_special_tokens") or [])]}
    described = settings.get("added_tokens_decoder") or {}
    ids = [*added.items(), *((entry["content"], int(index)) for index, entry in described.items())]
    ids.sort(key=lambda pair: pair[1])
    entries: dict[str, dict[str, Any]] = {entry["content"]: entry for entry in described.values()}
    # added_tokens.json lacks flags: a token that only it lists is special if a setting such as eos_token names it.
    known = {token.content for token in core.get_added_tokens_decoder().values()}
    for content in added.keys() - known - entries.keys():
        entries[content] = {"content": content, "special": content in special}
    listed = [entries[content] for content, _ in ids if content in entries]
    core.add_tokens([AddedToken(**{k: e[k] for k in _TOKEN_KEYS & e.keys()}) for e in listed])
    for content, index in ids:
        if (actual := core.token_to_id(content)) != index:
            raise ValueError(f"{content!r} is stated to be id {index} and gets {actual}")


def _read_settings(folder: Path) -> dict[str, Any]:
    return {**_read_object(folder / _SPECIAL), **_read_object(folder / _CONFIG)}


def _read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty dict if the file does not exist."""
    try:
        return read_json_object(file) if is_plain_file(file) else {}
    except ValueError as error:
        raise ValueError(f"{file.name} is not a JSON object, {error}") from error


def _token_text(token: Any) -> str | None:
    """Return the text of a token, given as a string or as a dict with `content` and flags; None if it is unset."""
    text = token["content"] if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """Return chat_template.jinja, else the setting `chat_template` (of a list its entry `default`), or None."""
    template = settings.get("chat_template")
    if is_plain_file(folder / _TEMPLATE):
        template = read_bytes(folder / _TEMPLATE).decode()
    elif isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    compile_template(template or "")  # raise for a broken template now, not in a chat
    return template


def _open_turn(text: str, content: str) -> str:
    """Return the text up to the end of its last message, `content`, without the tokens that close the turn.

    Trailing whitespace of `content` is kept only if the template keeps it. transformers does the same, and benchmarks
    that give the beginning of an answer rely on it.
    """
    start = text.rfind(content.strip())
    if start < 0:
        raise PromptError(
            f"the chat template rewrites its last message ({content!r:.60}), so that the turn cannot be "
            "left open; leave continue_last out"
        )
    return text[: start + len(content if text.startswith(content, start) else content.strip())]


class _TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox without powers and large products, which Jinja evaluates even when it compiles a template."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if isinstance(x, (str, list, tuple)) else abs(x) for x in (left, right)]
        if operator == "**" or sizes[0] * sizes[1] > MAX_PRODUCT:
            raise SecurityError(f"a template may not compute with {operator} on such numbers")
        return super().call_binop(context, operator, left, right)


_JINJA = _TemplateEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])


@lru_cache(maxsize=8)  # not stored in the tokenizer, because compiled templates cannot be pickled
def compile_template(text: str) -> jinja2.Template:
    """Return a compiled chat template; raise an exception of jinja2 or ValueError if it is broken or too long."""
    if len(text) > MAX_TEMPLATE_LENGTH:
        raise ValueError(f"the chat template has {len(text)} characters; at most {MAX_TEMPLATE_LENGTH} are read")
    return _JINJA.from_string(text)


@contextmanager
def _limit_lines(lines: int) -> Iterator[None]:
    """Raise RuntimeError if the `with` body runs more than `lines` lines of Python, for instance in an endless loop."""
    remaining, previous = lines, sys.gettrace()

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal remaining
        remaining -= event == "line"
        if remaining < 0:
            raise RuntimeError(f"it ran for {lines} lines and was stopped")
        return count

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(previous)


def _raise_in_template(reason: str) -> NoReturn:
    """Raise TemplateError; templates call this as `raise_exception` to reject a conversation."""
    raise jinja2.TemplateError(reason)
