"""Whether a record is of the run that is planned: the same configuration, trained and judged on the standard text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from varsmooth.config import flat_config, to_mapping
from varsmooth.errors import InputError
from varsmooth.report.runs import NOT_COMPARED
from varsmooth.reproduce.jobs import Job
from varsmooth.text.named import KNOWN
from varsmooth.train.record import Record, full_config

NOT_FINITE = "not finite"


def has_ended(record: Record) -> bool:
    """Whether a run need not be trained again: it finished, or with these values it diverges."""
    return record.get("status") == "finished" or diverged(record)


def diverged(record: Record) -> bool:
    return (record.get("status"), record.get("stopped_because")) == ("failed", NOT_FINITE)


def fits(job: Job, record: Record) -> bool:
    """Whether a record is of a job, whatever its seed; what may differ says ``NOT_COMPARED``."""
    return is_of_text(record, job.corpus, job.share) and not differing(record.get("config") or {}, to_mapping(job.config))


def differing(recorded: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ; what a record is too old to know has its default."""
    try:
        own = full_config(recorded)
    except InputError:
        return ["settings that are no longer known"]
    wanted = flat_config(planned)
    return [key for key, value in wanted.items() if key not in NOT_COMPARED and own.get(key) != value]


def is_of_text(record: Record, corpus: str, share: float = 1.0) -> bool:
    """Whether a run had the standard copy of a corpus; of a share of it, at least the same valid and test."""
    found = (record.get("data") or {}).get("checksums") or {}
    expected = standard_checksums(corpus)
    return all(found.get(split) == sha256 for split, sha256 in expected.items() if share == 1 or split != "train")


def standard_checksums(corpus: str) -> dict[str, str]:
    """Return the SHA-256 of each split of a corpus; nothing for one that is not known."""
    known = KNOWN.get(corpus)
    return {file.removesuffix(".txt"): about.sha256 for file, about in known.files.items()} if known else {}
