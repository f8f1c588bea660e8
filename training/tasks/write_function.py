"""Write a Python function from a sentence and example asserts, in the manner of MBPP."""

from __future__ import annotations

import random

from lastword.tasks import Example
from training.tasks import requests
from training.tasks.programs import COUNT, JOINED, LIST, SORTED, UNIQUE, Gather, Part, Pipeline, asserts, informative
from training.tasks.style import words

HIDDEN_TESTS = 6
PARAMETERS = ("text", "line", "phrase")
LETTERS = "abcdeilmnoprstu"
WORDS = words("""
    apple Ball cat Dog east Five gold hat Iron jam kite Lamp moon Nest oak pear Queen rain Sand tree
    under Vase wind yes zero abc Top net Sun sea
""")


def generate(rng: random.Random, style_rng: random.Random) -> Example:
    """Draw a function over the characters or words of a text."""
    parameter = rng.choice(PARAMETERS)
    program = _by_word(rng, parameter) if rng.random() < 0.5 else _by_character(rng, parameter)
    name = program.name
    examples = asserts(program, name, parameter, _informative_texts(rng, program, parameter, 3, 2))
    types, documents, repeats = (style_rng.random() < chance for chance in (0.2, 0.2, 0.2))
    body, requested = program.body(style_rng, parameter)
    met = [requests.TYPES] * types + [requests.DOCUMENT] * documents + [requests.EXAMPLE] * repeats
    requested += requests.draw_requests(style_rng, *met)
    prompt = (
        f"Write a function {name} that takes {parameter} and returns {program.sentence}.{requested}\n"
        f"{examples[0]}\n{examples[1]}\nCode:\n"
    )
    hidden = asserts(program, name, parameter, ["", *_informative_texts(rng, program, parameter, 6, HIDDEN_TESTS)])
    arrow = f" -> {program.gather.type}" if types else ""
    head = f"def {name}({parameter}{': str' * types}){arrow}:"
    document = f'    """Return {program.sentence}."""'
    answer = "\n".join([head, *[document] * documents, body, *examples[:1] * repeats])
    return Example("write_function", prompt, answer, "\n".join(hidden))


def _informative_texts(rng: random.Random, program: Pipeline, parameter: str, longest: int, count: int) -> list[str]:
    texts = [_text(rng, longest) for _ in range(8 * count)]
    return informative(program, parameter, texts, count)


def _text(rng: random.Random, longest: int) -> str:
    chosen = [rng.choice((*WORDS, str(rng.randint(1, 99)))) for _ in range(rng.randint(2, longest))]
    return " ".join(chosen)


def _by_character(rng: random.Random, parameter: str) -> Pipeline:
    c = rng.choice(LETTERS)
    keep = rng.choice(
        (
            Part("the vowels of {}", "vowels", '{x} in "aeiou"'),
            Part("the non-vowels of {}", "not_vowels", '{x} not in "aeiou"'),
            Part("the digits of {}", "digits", "{x}.isdigit()"),
            Part("the letters of {}", "letters", "{x}.isalpha()"),
            Part("the capitals of {}", "capitals", "{x}.isupper()"),
            Part("the small letters of {}", "small", "{x}.islower()"),
            Part(f"the characters of {{}} other than {c}", f"not_{c}", f'{{x}} != "{c}"'),
            Part(f"the characters of {{}} after {c}", f"after_{c}", f'{{x}} > "{c}"'),
        )
    )
    gather = rng.choice((LIST, COUNT, JOINED, SORTED, UNIQUE))
    change = rng.choice(
        (
            Part("{}", "", ""),
            Part("{} in upper case", "upper", "{x}.upper()"),
            Part("{} in lower case", "lower", "{x}.lower()"),
            Part("{} doubled", "double", "{x} * 2"),
            Part(f"{{}} followed by {c}", f"with_{c}", f'{{x}} + "{c}"'),
        )
    )
    return Pipeline(Part(parameter, "", "{s}"), keep, _unless_counted(change, gather), gather)


def _by_word(rng: random.Random, parameter: str) -> Pipeline:
    c, k = rng.choice(LETTERS), rng.randint(2, 5)
    keep = rng.choice(
        (
            Part("the words of {}", "", ""),
            Part(f"the words of {{}} longer than {k}", f"over_{k}", f"len({{x}}) > {k}"),
            Part(f"the words of {{}} with {k} letters", f"size_{k}", f"len({{x}}) == {k}"),
            Part(f"the words of {{}} with the letter {c}", f"has_{c}", f'"{c}" in {{x}}'),
            Part(f"the words of {{}} without the letter {c}", f"no_{c}", f'"{c}" not in {{x}}'),
            Part("the numbers of {}", "numbers", "{x}.isdigit()"),
            Part("the capitalized words of {}", "titles", "{x}.istitle()"),
        )
    )
    gather = rng.choice((LIST, COUNT, JOINED, SORTED, UNIQUE))
    change = rng.choice(
        (
            Part("{}", "", ""),
            Part("{} in upper case", "upper", "{x}.upper()"),
            Part("{} in lower case", "lower", "{x}.lower()"),
            Part("{} reversed", "reversed", "{x}[::-1]"),
            Part("the first letters of {}", "first", "{x}[0]"),
            Part("the last letters of {}", "last", "{x}[-1]"),
        )
    )
    source = Part(parameter, "words", "{s}.split()")
    return Pipeline(source, keep, _unless_counted(change, gather), gather)


def _unless_counted(change: Part, gather: Gather) -> Part:
    """Return no change for a count, which does not depend on the values."""
    return Part("{}", "", "") if gather is COUNT else change
