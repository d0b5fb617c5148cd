from __future__ import annotations

import codecs
import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varsmooth.errors import InputError
from varsmooth.text.reading import decode_lines, read_lines

OrdinaryUser = Callable[[], AbstractContextManager[None]]


def write(folder: Path, data: bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a b\nc\n", [["a", "b"], ["c"]]),
        (b"a b\nc", [["a", "b"], ["c"]]),
        (b"a b\r\nc\r\n", [["a", "b"], ["c"]]),
        (codecs.BOM_UTF8 + b"a\n", [["a"]]),
        (codecs.BOM_UTF8 + b"\na\n", [[], ["a"]]),
        (b" \n a  b \n\n\t\nc \n", [[], ["a", "b"], [], [], ["c"]]),
        ("naïve 日本\n".encode(), [["naïve", "日本"]]),
        ("a \ufeff b\n\ufeffc\n".encode(), [["a", "\ufeff", "b"], ["\ufeffc"]]),
    ],
)
def test_lines_are_split_on_white_space(tmp_path: Path, data: bytes, lines: list[list[str]]) -> None:
    assert list(read_lines(write(tmp_path, data))) == lines


def test_digest_is_that_of_the_file(tmp_path: Path) -> None:
    data = codecs.BOM_UTF8 + b"a b\r\n\nc"
    digest = hashlib.sha256()
    list(read_lines(write(tmp_path, data), digest))
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()


def test_reading_streams(tmp_path: Path) -> None:
    lines = read_lines(write(tmp_path, b"good\n" * 10_000 + b"\xff\n"))
    assert next(lines) == ["good"]
    with pytest.raises(InputError, match="byte 50000, in line 10001"):
        list(lines)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"text\.txt is empty"),
        (codecs.BOM_UTF8, r"text\.txt is empty"),
        (b"abc\nd\xe9f\n", r"text\.txt is not UTF-8 \(0xe9 at byte 5, in line 2\); save"),
        (codecs.BOM_UTF8 + b"ab\xff", r"0xff at byte 5, in line 1"),
        (b"abc\ntruncated \xe6\x97", r"0xe6 at byte 14, in line 2"),
        (codecs.BOM_UTF16_LE + "hi".encode("utf-16-le"), r"binary data \(a NUL byte at byte 3, in line 1\)"),
        (b"\x7fELF\n\x02\0\0", r"binary data \(a NUL byte at byte 6, in line 2\)"),
    ],
)
def test_bad_bytes_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_lines(write(tmp_path, data)))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.txt: there is no such file"):
        list(read_lines(tmp_path / "nothing.txt"))


def test_folder_where_a_file_belongs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder where a text file belongs"):
        list(read_lines(tmp_path))


def test_a_name_the_system_refuses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(read_lines(tmp_path / ("x" * 5000)))


def test_no_permission(open_folder: Path, ordinary_user: OrdinaryUser) -> None:
    path = write(open_folder, b"secret\n")
    with ordinary_user():
        assert list(read_lines(path)) == [["secret"]]
    path.chmod(0o000)
    with ordinary_user(), pytest.raises(InputError, match=r"text\.txt: no permission to read it"):
        list(read_lines(path))


@given(st.binary() | st.text().map(str.encode))
@settings(deadline=None, max_examples=300)
def test_any_bytes_give_tokens_or_one_clear_line(data: bytes) -> None:
    try:
        lines = list(decode_lines(data.splitlines(keepends=True), "fuzz"))
    except InputError as error:
        lines, message = [], str(error)
    else:
        message = "fuzz has been read"
        assert [token for tokens in lines for token in tokens] == data.decode("utf-8-sig").split()
    assert message.startswith("fuzz ")
    assert "\n" not in message
