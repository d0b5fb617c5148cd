from __future__ import annotations

import csv
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from varsmooth.bench.findings import Check, Findings, Measurement, Quartiles, Target
from varsmooth.bench.output import COLUMNS, append_csv, check_csv, failure_lines, figures_table, targets_table
from varsmooth.errors import InputError

ENVIRONMENT = {
    "versions": {"torch": "2.11.0", "triton": None, "python": "3.12.1", "varsmooth": "0.1.0"},
    "hardware": {"device": "cuda", "name": "NVIDIA H200"},
    "commit": "abc",
}
STEP = Measurement(
    "schemes", "step", 512, 10_000, "vanilla", Quartiles(1.25, 1.2, 1.3, 9), "ms", 0.267, Target("vanilla, 512", 1.3, 0.8, 2.3)
)
RATIO = Measurement("schemes", "over vanilla", 512, 33_278, "blank", Quartiles(1.0 / 3, 0.3, 0.4, 9), "x")
MEMORY = Measurement(
    "memory", "peak memory", 512, 10_000, "vanilla", Quartiles(412.6, 412.6, 412.6, 1), "MB", None, Target("m", 400, 200)
)
FINDINGS = Findings(ENVIRONMENT, [], [STEP, RATIO, MEMORY])


def shown(table: Table | None) -> str:
    assert table is not None
    console = Console(width=150, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_figures_have_quartiles_and_floors() -> None:
    text = shown(figures_table(FINDINGS.measurements))
    step, ratio, memory = (line.split() for line in text.splitlines() if "512" in line)
    assert step == ["step", "vanilla", "512", "PTB", "1.25", "1.2-1.3", "ms", "0.267"]
    assert ratio == ["over", "vanilla", "blank", "512", "WT2", "0.3333", "0.3-0.4", "x"]
    assert memory == ["peak", "memory", "vanilla", "512", "PTB", "412.6", "MB"]


def test_figures_to_reach_say_whether_they_are_reached() -> None:
    text = shown(targets_table(FINDINGS.measurements))
    step, memory = (line.split() for line in text.splitlines() if "vanilla, 512" in line or line.split()[:1] == ["m"])
    assert step == ["vanilla,", "512", "1.25", "2.3", "1.3", "0.8", "ms", "yes"]
    assert memory == ["m", "412.6", "400", "200", "MB", "no"]
    assert "blank" not in text


def test_where_nothing_is_to_be_reached_there_is_no_table() -> None:
    assert targets_table([RATIO]) is None


def test_failures_are_named() -> None:
    (line,) = failure_lines([Check("kernels are references (bf16)", "blank, 512, gradient of bias", 0.25, 0.03)])
    assert line == "kernels are references (bf16): blank, 512, gradient of bias: off by 0.25, allowed 0.03"


def test_rows_are_added_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "results" / "bench.csv"
    append_csv(path, FINDINGS)
    append_csv(path, FINDINGS)
    found = rows(path)
    assert len(found) == 6
    assert path.read_text().startswith(",".join(COLUMNS) + "\n")
    assert found[0] | {"time": ""} == {
        "time": "",
        "device": "NVIDIA H200",
        "torch": "2.11.0",
        "triton": "",
        "python": "3.12.1",
        "varsmooth": "0.1.0",
        "commit": "abc",
        "group": "schemes",
        "quantity": "step",
        "size": "512",
        "vocabulary": "10000",
        "scheme": "vanilla",
        "median": "1.25",
        "q1": "1.2",
        "q3": "1.3",
        "unit": "ms",
        "repeats": "9",
        "floor": "0.267",
        "start": "2.3",
        "reach": "1.3",
        "aim": "0.8",
    }
    assert found[4]["median"] == "0.333333"
    assert found[4]["reach"] == ""
    assert found[0]["time"].endswith("+00:00")


def test_a_last_line_without_an_end_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    path.write_text(",".join(COLUMNS))
    append_csv(path, FINDINGS)
    assert len(rows(path)) == 3


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "", "\xff"])
def test_another_file_is_never_added_to(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"other\.csv"):
        check_csv(path)
    with pytest.raises(InputError):
        append_csv(path, FINDINGS)
    assert path.read_bytes() == text.encode("latin-1")


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        check_csv(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"--csv .*file/below/rows.csv: .*file is a file, not a folder"):
        check_csv(tmp_path / "file" / "below" / "rows.csv")
    check_csv(tmp_path / "new" / "rows.csv")
