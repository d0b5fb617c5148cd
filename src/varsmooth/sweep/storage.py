"""Where a study's trials are kept: one SQLite file, or a PostgreSQL database that many machines reach.

SQLite and not Optuna's journal file: a transaction survives a killed process and a power cut, where a line of a journal that
was cut off spoils the file, and the same code serves PostgreSQL. What SQLite lacks, that a row is locked while it is claimed,
the locks of ``claims`` supply, for its workers share a folder.
"""

from __future__ import annotations

import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import urlsplit, urlunsplit

from varsmooth.errors import InputError
from varsmooth.text.reading import exists

if TYPE_CHECKING:
    import optuna

FILE = "sweep.db"
NOTE = "sweep.json"
"""In a sweep's folder: which study it holds, and where its database and text are."""
GRACE = 120
"""Seconds without a sign of life after which a worker on another machine counts as dead."""
WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between attempts to reach a database that does not answer: a minute in all."""
SIGNS_PER_GRACE = 4
HOPELESS = re.compile("unable to open|not a database|malformed|readonly|full")
"""What SQLite says of a file where waiting changes nothing."""
MISTAKEN = re.compile('(database|role) ".*" does not exist|authentication failed|no pg_hba.conf entry|no password supplied')
"""What PostgreSQL says of a URL that waiting does not mend. (Of a table that another worker is just making it says less.)"""

Answer = TypeVar("Answer")
Question = ParamSpec("Question")


class StorageDownError(InputError):
    """The database has not answered for a minute, or its file cannot be used."""


def import_optuna() -> Any:
    """Import Optuna, which only sweeps need."""
    try:
        import optuna
    except ImportError:
        raise InputError(
            "varsmooth sweep needs Optuna: pip install 'varsmooth[sweep]'; a machine without it can still train trials that "
            "another has asked for: varsmooth train --fleet trials.json"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Store:
    """An Optuna storage, with patience for a database that is away."""

    def __init__(
        self,
        url: str,
        grace: int = GRACE,
        waits: tuple[float, ...] | None = None,
        say: Callable[[str], None] = lambda _: None,
        *,
        make: bool = True,
    ) -> None:
        """``say`` is told when a wait for the database begins; without ``make`` no tables are made where there are none."""
        self.optuna = import_optuna()
        self.say = say
        self.url, self.shared = url, not url.startswith("sqlite:")
        self.waits = WAITS if waits is None else waits
        self.interval = max(1, grace // SIGNS_PER_GRACE)
        # SQLite's workers share a folder, whose locks tell sooner and surer who is alive.
        beats = {"heartbeat_interval": self.interval, "grace_period": grace} if self.shared else {}
        engine = {"pool_pre_ping": True} if self.shared else {"connect_args": {"timeout": 60}}
        with quiet(self.optuna):
            self.storage = self.attempt(self._open, _with_driver(url), engine, beats, make)

    @classmethod
    def in_folder(cls, folder: Path) -> Store:
        """The file that a sweep's folder keeps when no URL is given."""
        return cls(file_url(folder))

    @property
    def folder(self) -> Path | None:
        """The folder that an SQLite file is in."""
        return None if self.shared else Path(self.url.removeprefix("sqlite:///")).absolute().parent

    def attempt(self, ask: Callable[Question, Answer], *args: Question.args, **options: Question.kwargs) -> Answer:
        """Return the database's answer, after waiting where it is away; asking twice must do no harm."""
        sql = self._sqlalchemy_errors()
        for number, wait in enumerate((*self.waits, None)):
            try:
                with quiet(self.optuna):
                    return ask(*args, **options)
            except (self.optuna.exceptions.StorageInternalError, *sql) as error:
                reason = _reason(error)
                if (MISTAKEN if self.shared else HOPELESS).search(reason):
                    raise StorageDownError(f"{shown(self.url)}: cannot be used as the database of a sweep: {reason}") from None
                if wait is None:
                    raise StorageDownError(
                        f"{shown(self.url)}: the database does not answer ({reason}); nothing is lost: "
                        "run the same command again when it is back"
                    ) from None
                if number == 1:  # not the first: two workers that make the tables at once meet there
                    self.say(f"{shown(self.url)}: the database does not answer ({reason}); trying again for a minute")
                time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def study(self, name: str) -> optuna.Study:
        """Open the Optuna study of this name, or create it."""
        create: Callable[..., optuna.Study] = self.optuna.create_study
        return self.attempt(create, storage=self.storage, study_name=name, direction="minimize", load_if_exists=True)

    def existing(self, name: str) -> optuna.Study:
        """Open the Optuna study of this name, which must be there."""
        load: Callable[..., optuna.Study] = self.optuna.load_study
        return self.attempt(load, storage=self.storage, study_name=name)

    def names(self) -> list[str]:
        """Return the names of all Optuna studies that it holds."""
        return list(self.attempt(self.optuna.get_all_study_names, self.storage))

    def fail_silent(self, study: optuna.Study) -> None:
        """Mark trials whose worker has given no sign of life for too long; their slots are given out again."""
        if self.shared:
            self.attempt(self.optuna.storages.fail_stale_trials, study)

    def _open(self, url: str, engine: dict[str, Any], beats: dict[str, int], make: bool) -> Any:
        try:
            if not make:
                self._refuse_empty(url)
            opened = self.optuna.storages.RDBStorage(url, engine_kwargs=engine, **beats)
        except ImportError:
            raise InputError(f"{shown(self.url)}: PostgreSQL needs psycopg: pip install 'varsmooth[sweep]'") from None
        weakref.finalize(self, opened.engine.dispose)  # closes its connections
        return self.optuna.storages.get_storage(opened)

    def _refuse_empty(self, url: str) -> None:
        """Refuse a database without Optuna's tables, which opening would make in it."""
        from sqlalchemy import create_engine, inspect

        is_there = self.shared or exists(Path(url.removeprefix("sqlite:///")))  # else to look would make a file
        engine = create_engine(url if is_there else "sqlite://")
        try:
            if not inspect(engine).has_table("studies"):
                raise InputError(f"{shown(self.url)} holds no study; varsmooth sweep starts one")
        finally:
            engine.dispose()

    @staticmethod
    def _sqlalchemy_errors() -> tuple[type[Exception], ...]:
        from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

        # Two workers that make the tables at the same time meet the last two; the second attempt finds them made.
        return (DBAPIError, IntegrityError, ProgrammingError)


def check_url(url: str) -> str:
    """Refuse a storage that is neither SQLite nor PostgreSQL."""
    if not url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://", "sqlite:///")):
        raise InputError(f"--storage {shown(url)}: must look like postgresql://user@host/database (or sqlite:///file)")
    return url


def file_url(folder: Path) -> str:
    return f"sqlite:///{folder.absolute() / FILE}"


def shown(url: str) -> str:
    """Return the URL without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))


@contextmanager
def quiet(optuna: Any) -> Iterator[None]:
    """Heartbeats are marked as experimental by Optuna; its users have relied on them for years."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _with_driver(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else url


def _reason(error: BaseException) -> str:
    """Return the first line of the cause that the database's driver gave."""
    while error.__cause__ is not None:
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    return next(iter(str(original).strip().splitlines()), type(original).__name__)
