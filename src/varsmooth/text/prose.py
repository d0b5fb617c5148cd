"""Prose out of docstrings: sentences as lists of lower-case tokens, without code, doctests, signatures and tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

MIN_WORDS = 4
MIN_SHARE = 0.7
"""Of a sentence's tokens other than punctuation, those that are words rather than numbers or identifiers."""

_BULLET = re.compile(r"(?:[-*+o]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
_RULE = re.compile(r"[\W_]+")
_SIGNATURE = re.compile(r"[\w.]+\(.*\):?|.*->.*")
_FIELD = re.compile(r"[:@]\w.*:.*|[\w.]+\s+--?\s.*|.*\w\s{3,}\w.*")
_ROLE = re.compile(r":[a-z:]+:(?=`)")
_QUOTE = re.compile(r"`+|\"|(?<!\w)'|'(?!\w)")
_CALL = re.compile(r"(?<=\w)\(\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z(])")
_CODE = re.compile(r"[=<>\[\]{}\\|@#$%^&*~+]|://|\w\(|\w/|/\w|\.\.|__|!\w|,\w|\w:\w")
_TOKEN = re.compile(
    r"(?:e\.g|i\.e|etc|vs)\."  # abbreviations keep their full stop
    r"|[^\W\d_]+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b"  # do n't, file 's
    r"|(?:(?<!\w)\.(?=[^\W\d]))?(?:[^\W\d]|\d+-[^\W\d])\w*(?:[.-]\w+)*"  # words and dotted or hyphened names
    r"|\d+(?:[.,:]\d+)*|--|[.,;:?!()]"
)
_PUNCTUATION = frozenset([*".,;:?!()", "--"])


def sentences(docstring: str) -> Iterator[list[str]]:
    """Yield the sentences of a docstring's prose, each a list of tokens; numbers are ``N``."""
    for paragraph in _paragraphs(docstring):
        for sentence in _SENTENCE_END.split(paragraph):
            if not _CODE.search(sentence):
                tokens = _tokenise(sentence)
                if _is_prose(tokens):
                    yield tokens


def _paragraphs(docstring: str) -> Iterator[str]:
    block: list[str] = []
    in_doctest = False
    for line in [*map(str.strip, inspect.cleandoc(docstring).splitlines()), ""]:
        in_doctest = bool(line) and (in_doctest or line.startswith(">>>"))
        drop = in_doctest or _is_layout(line)
        bullet = _BULLET.match(line)
        if drop or bullet or (block and block[-1].endswith(":")):
            yield from _joined(block)
            block = []
        if not drop:
            block.append(line[bullet.end() :] if bullet else line)


def _is_layout(line: str) -> bool:
    """Tell blank lines, rules under headings, table rows, field lists and lone signatures from running text."""
    return not line or any(shape.fullmatch(line) for shape in (_RULE, _SIGNATURE, _FIELD))


def _joined(lines: list[str]) -> Iterator[str]:
    if lines:
        text = re.sub(r"(?<=\w)-\n(?=[a-z])", "-", "\n".join(lines))
        yield _CALL.sub("", _QUOTE.sub("", _ROLE.sub("", text))).replace("\n", " ")


def _tokenise(sentence: str) -> list[str]:
    tokens = _TOKEN.findall(sentence.lower())
    return ["N" if token[0].isdigit() and not any(map(str.isalpha, token)) else token for token in tokens]


def _is_prose(tokens: list[str]) -> bool:
    plain = sum(_is_plain_word(token) for token in tokens)
    punctuation = sum(token in _PUNCTUATION for token in tokens)
    enough = plain >= MIN_WORDS and plain >= MIN_SHARE * (len(tokens) - punctuation)
    return enough and punctuation <= plain / 2  # more is a list of names


def _is_plain_word(token: str) -> bool:
    return token != "N" and token.replace("'", "").replace("-", "").isalpha()
