from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth.text.prose import sentences


def lines(docstring: str) -> list[str]:
    return [" ".join(tokens) for tokens in sentences(docstring)]


def test_sentences_over_several_lines() -> None:
    text = """Read the whole file, and close it.

    The file must have been
    opened before (see above).  Otherwise an error is raised; the platform-
    specific reason is given.
    """
    assert lines(text) == [
        "read the whole file , and close it .",
        "the file must have been opened before ( see above ) .",
        "otherwise an error is raised ; the platform-specific reason is given .",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("It takes 3 or 4.5 seconds here.", "it takes N or N seconds here ."),
        ("Returns a 2-tuple of the names.", "returns a 2-tuple of the names ."),
        ("Don't use the file's name here.", "do n't use the file 's name here ."),
        ("Call ``open()`` or :func:`os.path.join` on 'name' first.", "call open or os.path.join on name first ."),
        ("Some methods, e.g. this one, are slow.", "some methods , e.g. this one , are slow ."),
        ("Files that end in .py are read.", "files that end in .py are read ."),
        ("This is slow -- much too slow.", "this is slow -- much too slow ."),
    ],
)
def test_tokens(text: str, line: str) -> None:
    assert lines(text) == [line]


@pytest.mark.parametrize(
    "code",
    [
        ">>> spam()\nThe first line of the output.\nThe second looks like prose as well.\n",
        "spam(one, two, three) -> the result of it all",
        "this sets x = y and then it stops",
        "--------------------",
        "==== ======= ====",
        "name -- the name of the file to read",
        ":param name: the name of the file to read",
        "first column of words     second column of words",
        "see https://example.org for all of the details",
        "the key d[0] is the first of them",
        "too few words",
        "width, height, depth, colour, font",
        "one 2 three 4 five 6 seven 8 nine",
    ],
)
def test_code_and_layout_are_left_out(code: str) -> None:
    assert lines(f"Here is what it does today.\n\n{code}\n\nAnd that is all of it.") == [
        "here is what it does today .",
        "and that is all of it .",
    ]


def test_bullets_are_sentences_of_their_own() -> None:
    text = "The rules are as follows:\n  - the first word goes here\n  * the second word goes there\n  1. the third is lost"
    assert lines(text) == [
        "the rules are as follows :",
        "the first word goes here",
        "the second word goes there",
        "the third is lost",
    ]


@given(st.text())
@settings(deadline=None)
def test_any_text_gives_clean_tokens(text: str) -> None:
    for tokens in sentences(text):
        assert len(tokens) >= 4
        assert all(token.split() == [token] for token in tokens)
        assert all(token == "N" or token == token.lower() for token in tokens)
