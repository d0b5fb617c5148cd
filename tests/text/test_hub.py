from __future__ import annotations

import hashlib
import importlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from varsmooth.errors import InputError
from varsmooth.text import open_corpus
from varsmooth.text.hub import PARQUET, REPOSITORY, fetch_wikitext2
from varsmooth.text.named import KNOWN, KnownData, KnownFile

pytest.importorskip("huggingface_hub")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = {
    "train.txt": " \n = Title = \n \n The words of naïve text . \n Of the title . \n",
    "valid.txt": " \n = Title = \n",
    "test.txt": " Of words . \n \n",
}
SMALL = KnownData(
    "wikitext-2", 9, {file: KnownFile(hashlib.sha256(text.encode()).hexdigest(), 0) for file, text in TEXTS.items()}
)


def as_parquet(text: str, path: Path) -> bytes:
    """Store lines as the hub does: blank ones as empty strings, others with their newline."""
    rows = [line if line.strip() else "" for line in text.splitlines(keepends=True)]
    parquet.write_table(pyarrow.table({"text": rows}), path)
    return path.read_bytes()


class Hub:
    """A local stand-in for the hub's resolve endpoint."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.authorised = False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def _handler(hub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                hub.requests.append(f"{self.command} {self.path}")
                hub.authorised |= "Authorization" in self.headers
                data = hub.files.get(self.path.removeprefix(f"/datasets/{REPOSITORY}/resolve/main/"))
                self.send_response(404 if data is None else 200)
                self.send_header("X-Repo-Commit", "0" * 40)
                if data is None:
                    self.send_header("X-Error-Code", "EntryNotFound")
                    self.send_header("Content-Length", "0")
                else:
                    self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if data is not None and self.command == "GET":
                    self.wfile.write(data)

            do_GET = do_HEAD = answer  # noqa: N815

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_TOKEN", "a-secret-that-stays-here")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf-cache"))
    hub = Hub()
    hub.files = {PARQUET[file]: as_parquet(text, tmp_path / "rows.parquet") for file, text in TEXTS.items()}
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()
    thread.join()


def test_fetch_writes_the_standard_copy(hub: Hub, tmp_path: Path) -> None:
    target = tmp_path / "data" / "wikitext-2"
    paths = fetch_wikitext2(target, endpoint=hub.endpoint, known=SMALL)
    assert {file: path.read_bytes().decode() for file, path in paths.items()} == TEXTS
    assert sorted(path.name for path in target.iterdir()) == sorted(TEXTS)
    assert len(open_corpus("wikitext-2", data_dir=tmp_path / "data", min_count=2).train) == 18
    assert not hub.authorised


def test_a_copy_that_is_there_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    fetch_wikitext2(tmp_path, endpoint=hub.endpoint, known=SMALL)
    hub.requests.clear()
    (tmp_path / "test.txt").unlink()
    fetch_wikitext2(tmp_path, endpoint=hub.endpoint, known=SMALL)
    assert hub.requests
    assert all("/test-" in request for request in hub.requests)
    hub.requests.clear()
    fetch_wikitext2(tmp_path, endpoint=hub.endpoint, known=SMALL)
    assert hub.requests == []


def test_another_file_is_not_overwritten(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("my own text\n")
    with pytest.raises(InputError, match=r"valid\.txt is there already and is not the standard copy"):
        fetch_wikitext2(tmp_path, endpoint=hub.endpoint, known=SMALL)
    assert (tmp_path / "valid.txt").read_text() == "my own text\n"
    assert hub.requests == []


def test_a_wrong_sum_writes_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.files[PARQUET["test.txt"]] = as_parquet(" Other words . \n", tmp_path / "other.parquet")
    target = tmp_path / "data"
    with pytest.raises(InputError, match=r"does not give the standard test\.txt; nothing was written"):
        fetch_wikitext2(target, endpoint=hub.endpoint, known=SMALL)
    assert not target.exists()


@pytest.mark.parametrize("column", [None, {"words": ["a"]}, {"text": [1]}])
def test_what_is_not_a_table_of_lines(hub: Hub, tmp_path: Path, column: dict[str, list[object]] | None) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"<html>not found</html>")
    if column is not None:
        parquet.write_table(pyarrow.table(column), path)
    hub.files[PARQUET["train.txt"]] = path.read_bytes()
    with pytest.raises(InputError, match="is not a table of lines of text"):
        fetch_wikitext2(tmp_path / "data", endpoint=hub.endpoint, known=SMALL)


def test_a_file_the_hub_lacks(hub: Hub, tmp_path: Path) -> None:
    del hub.files[PARQUET["valid.txt"]]
    with pytest.raises(InputError) as caught:
        fetch_wikitext2(tmp_path / "data", endpoint=hub.endpoint, known=SMALL)
    assert f"{PARQUET['valid.txt']} of {REPOSITORY} could not be fetched from the hub" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_unreachable_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.server.server_close()
    with pytest.raises(InputError, match="could not be fetched from the hub"):
        fetch_wikitext2(tmp_path / "data", endpoint=hub.endpoint, known=SMALL)


@pytest.mark.parametrize("module", ["huggingface_hub", "pyarrow.parquet"])
def test_missing_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'varsmooth\[hub\]'"):
        fetch_wikitext2(tmp_path)


def test_the_client_does_not_tell_of_every_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = importlib.import_module("huggingface_hub.utils.logging")
    before, meanwhile = told.get_verbosity(), []

    def fails(*_: object, **__: object) -> str:
        meanwhile.append(told.get_verbosity())
        raise OSError("no connection")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fails)
    with pytest.raises(InputError, match="could not be fetched from the hub: no connection"):
        fetch_wikitext2(tmp_path, known=SMALL)
    assert meanwhile == [told.ERROR]
    assert told.get_verbosity() == before != told.ERROR


def test_target_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(InputError, match=r"--data-dir .*data is a file, not a folder"):
        fetch_wikitext2(tmp_path / "data", endpoint=hub.endpoint, known=SMALL)


def test_the_real_text_survives_the_hubs_format(hub: Hub, real_data: Path, tmp_path: Path) -> None:
    for file, name in PARQUET.items():
        text = (real_data / "wikitext-2" / file).read_bytes().decode()
        rows = [line if line.strip() else "" for line in text.split("\n")[:-1]]
        path = tmp_path / "rows.parquet"
        parquet.write_table(pyarrow.table({"text": [row and f"{row}\n" for row in rows]}), path)
        hub.files[name] = path.read_bytes()
    paths = fetch_wikitext2(tmp_path / "data", endpoint=hub.endpoint, known=KNOWN["wikitext-2"])
    assert sum(path.stat().st_size for path in paths.values()) > 10_000_000
