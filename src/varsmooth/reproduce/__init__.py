"""The paper's table, figures and experiments: what is missing is trained, everything shown is built from records."""

from varsmooth.reproduce.catalogue import Budget, Setting, corpora, corpus_plan
from varsmooth.reproduce.choosing import choose_below
from varsmooth.reproduce.chosen import Choice, Chosen, TuningTrial, best_of, read_chosen, write_chosen
from varsmooth.reproduce.documents import stale_documents, write_documents
from varsmooth.reproduce.experiments import experiment_jobs, named_experiments
from varsmooth.reproduce.finalists import choose_among, finalist_jobs
from varsmooth.reproduce.jobs import Job, table_group, table_jobs
from varsmooth.reproduce.page import Page, build_page
from varsmooth.reproduce.parts import Parts, all_parts, check_parts
from varsmooth.reproduce.running import collect, jobs_to_train, missing_jobs, run_jobs, run_rounds

__all__ = [
    "Budget",
    "Choice",
    "Chosen",
    "Job",
    "Page",
    "Parts",
    "Setting",
    "TuningTrial",
    "all_parts",
    "best_of",
    "build_page",
    "check_parts",
    "choose_among",
    "choose_below",
    "collect",
    "corpora",
    "corpus_plan",
    "experiment_jobs",
    "finalist_jobs",
    "jobs_to_train",
    "missing_jobs",
    "named_experiments",
    "read_chosen",
    "run_jobs",
    "run_rounds",
    "stale_documents",
    "table_group",
    "table_jobs",
    "write_chosen",
    "write_documents",
]
