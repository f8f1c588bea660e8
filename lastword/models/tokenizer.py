"""Tokenizer: text to token ids and back, from the files both families ship beside their weights.

LLaDA comes with a ready `tokenizer.json`; Dream only with the parts of one, put together here by
Qwen2's rules. Nothing is added to a text: its beginning is the caller's or the template's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from lastword.errors import CheckpointError, PromptError
from lastword.io.schema import read_bytes, read_json_object
from lastword.models.path_safety import is_plain_file
from lastword.models.template import compiled, rendered

_READY, _PARTS, _TEMPLATE = "tokenizer.json", ("vocab.json", "merges.txt"), "chat_template.jinja"
_CONFIG, _ROLES, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_TOKEN_KEYS = {"content", "special", "lstrip", "rstrip", "normalized", "single_word"}
_Json = dict[str, Any]

# Where Qwen2 cuts a text before merging: contractions; letters and at most one sign before them;
# single digits; punctuation and newlines behind it; newlines; blanks, bar the one before a word.
_QWEN2_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """One checkpoint's tokenizer: the vocabulary, the tokens that bound a text, the chat layout.

    A special token written out in a text becomes that token, as with the authors' tokenizers; text
    from strangers can therefore close a turn, and a server has to decide whether it minds.
    """

    core: tokenizers.Tokenizer
    bos: str | None = None
    eos: str | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        self.core.no_truncation()  # a saved tokenizer may ask for either
        self.core.no_padding()

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer | None:
        """Read the tokenizer of a checkpoint folder; None when it has no tokenizer file at all."""
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder; give the folder of a checkpoint")
        every = (_READY, *_PARTS, _CONFIG, _ROLES, _ADDED, _TEMPLATE)
        present = [name for name in every if is_plain_file(folder / name)]
        if not present:
            return None
        try:
            core = _read_core(folder, present)
            settings = {**_read_object(folder / _ROLES), **_read_object(folder / _CONFIG)}
            _add_tokens(core, settings, _read_object(folder / _ADDED))
            bos, eos = (_text_of(settings.get(name)) for name in ("bos_token", "eos_token"))
            return cls(core, bos, eos, _chat_template(folder / _TEMPLATE, settings))
        except Exception as error:  # the Rust library has no narrower class
            raise CheckpointError(
                f"the tokenizer in {folder} ({', '.join(present)}) cannot be used "
                f"({type(error).__name__}: {error}); copy its files again from the checkpoint"
            ) from error

    @cached_property
    def size(self) -> int:
        """One past the highest id that has a token; the model's embedding may have more rows."""
        return max(self.core.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def id_of(self, token: str) -> int | None:
        """The id of one token, written as in the vocabulary; None when there is no such token."""
        return self.core.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        """The ids of `text` and nothing else: no bos, no eos."""
        try:
            return list(self.core.encode(text, add_special_tokens=False).ids)
        except TypeError as error:
            raise PromptError(
                f"{text!r:.80} cannot be encoded, only a str of whole Unicode characters can; "
                "convert it, and replace lone surrogates (\\ud800 to \\udfff)"
            ) from error

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; an id without a token, such as a spare embedding row, adds nothing."""
        known = [index for index in ids if 0 <= index < self.size]
        return self.core.decode(known, skip_special_tokens=skip_special)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
    ) -> list[int]:
        """The ids of a conversation, laid out by the checkpoint's own template."""
        return self.encode(
            self.render(messages, add_generation_prompt=add_generation_prompt, continue_last=continue_last)
        )

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
    ) -> str:
        """A conversation as the text its ids stand for.

        `continue_last` leaves the last turn open, so that an answer goes on where the message stops.
        """
        if self.chat_template is None:
            raise PromptError(
                "messages were given to a model without a (default) chat template; give plain text (on the "
                "command line, leave --chat out), take a model that `lastword models` marks chat, or put the "
                f"template into its folder as {_TEMPLATE}"
            )
        if not messages:
            raise PromptError("an empty list of messages was given; give at least one message")
        for place, message in enumerate(messages):
            parts = message if isinstance(message, Mapping) else {}
            if not all(isinstance(parts.get(part), str) for part in ("role", "content")):
                wanted = "a mapping of role and content to text; give {'role': ..., 'content': ...}"
                raise PromptError(f"message {place} is {message!r:.80}, not {wanted}")
        try:
            text = rendered(
                self.chat_template,
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt and not continue_last,
                bos_token=self.bos or "",  # None would be printed as a word
                eos_token=self.eos or "",
                raise_exception=_refuse,
                tools=None,
            )
        except Exception as error:  # a template is foreign code and may fail in any way
            raise PromptError(
                f"the chat template refused messages from {', '.join(m['role'] for m in messages)} "
                f"({error}); give roles in an order it allows, usually user and assistant in turn"
            ) from error
        return _open_turn(text, messages[-1]["content"]) if continue_last else text


def chat_template_of(folder: Path) -> str | None:
    """A checkpoint's chat template, without the rest of its tokenizer."""
    try:
        settings = {**_read_object(folder / _ROLES), **_read_object(folder / _CONFIG)}
        return _chat_template(folder / _TEMPLATE, settings)
    except Exception as error:  # as in `from_folder`
        raise CheckpointError(
            f"the chat template in {folder} cannot be used ({type(error).__name__}: {error}); copy its files "
            "again from the checkpoint"
        ) from error


def _read_core(folder: Path, present: Sequence[str]) -> tokenizers.Tokenizer:
    """The ready tokenizer, or byte-level BPE cut as Qwen2 does, which is what Dream's computes."""
    if _READY in present:
        return tokenizers.Tokenizer.from_buffer(read_bytes(folder / _READY))
    if not set(_PARTS) <= set(present):
        raise ValueError(f"it needs {_READY}, or {' and '.join(_PARTS)}")
    vocabulary, merges = (folder / name for name in _PARTS)
    read_json_object(vocabulary), read_bytes(merges)  # the Rust library knows no bounds
    core = tokenizers.Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    missing = set(pre_tokenizers.ByteLevel.alphabet()) - core.get_vocab().keys()
    if missing:  # text made of such bytes would vanish without a word
        raise ValueError(f"{_PARTS[0]} lacks {len(missing)} of the 256 single-byte tokens")
    split = pre_tokenizers.Split(Regex(_QWEN2_PIECES), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    core.decoder = decoders.ByteLevel()
    return core


def _add_tokens(core: tokenizers.Tokenizer, settings: _Json, more: _Json) -> None:
    """Add the tokens the settings describe, and `more`, and insist on the ids they state."""
    roles = [settings[name] for name in settings if name.endswith("_token")]
    roles += settings.get("additional_special_tokens") or []
    special = {_text_of(role) for role in roles}
    described = settings.get("added_tokens_decoder") or {}
    ids = [*more.items(), *((entry["content"], int(index)) for index, entry in described.items())]
    ids.sort(key=lambda pair: pair[1])
    # `more` tells ids only: a token nobody describes is special if it has a role.
    bare = more.keys() - {token.content for token in core.get_added_tokens_decoder().values()}
    entries: _Json = {it: {"content": it, "special": it in special} for it in bare}
    entries |= {entry["content"]: entry for entry in described.values()}
    wanted = [entries[content] for content, _ in ids if content in entries]
    core.add_tokens([AddedToken(**{k: e[k] for k in _TOKEN_KEYS & e.keys()}) for e in wanted])
    for content, index in ids:
        if (found := core.token_to_id(content)) != index:
            raise ValueError(f"{content!r} is stated to be id {index} and gets {found}")


def _chat_template(file: Path, settings: _Json) -> str | None:
    """The template file if there is one, else the setting: one text, or the one named default."""
    found = settings.get("chat_template")
    if is_plain_file(file):
        found = read_bytes(file).decode()
    elif isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    compiled(found or "")  # a broken template is better met now than in a chat
    return found


def _text_of(token: Any) -> str | None:
    """A token's text: settings write it as a string, or as a dict that also holds its flags."""
    text = token["content"] if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_object(file: Path) -> _Json:
    """The JSON object in `file`; empty when there is no such file."""
    try:
        return read_json_object(file) if is_plain_file(file) else {}
    except ValueError as error:
        raise ValueError(f"{file.name} is not a JSON object, {error}") from error


def _open_turn(text: str, content: str) -> str:
    """The text up to the end of its last turn's content, for templates close turns and may trim them.

    Blanks at the end stay only where the content stands in the text as given and starts with none: the
    way of transformers, whose prompts the scorers of begun answers count on.
    """
    at = text.rfind(content.strip())
    if at < 0:
        raise PromptError(
            f"the chat template rewrites its last message ({content!r:.60}), so that the turn cannot be "
            "left open; ask without continue_last"
        )
    return text[: at + len(content if text.startswith(content, at) else content.strip())]


def _refuse(reason: str) -> NoReturn:
    """What a template calls to reject a conversation."""
    raise jinja2.TemplateError(reason)
