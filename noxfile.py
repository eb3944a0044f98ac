"""The checks on each interpreter that is there, by `nox`; ``nox --list`` names them.

An interpreter that is missing is skipped. `scripts/test` is what runs everything on one.
"""

from __future__ import annotations

import nox

nox.options.sessions = ["quick", "package"]
nox.options.error_on_missing_interpreters = False
nox.options.default_venv_backend = "venv"
CONSTRAINED = ("-c", "constraints.txt")


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def quick(session: nox.Session) -> None:
    """The tests that start few processes: some minutes."""
    session.install(*CONSTRAINED, ".[test,remote]")
    session.run("pytest", "tests/unit", "tests/process/test_local_workers.py", *session.posargs)


@nox.session
def package(session: nox.Session) -> None:
    """Wheel and sdist: built, checked, installed, and examples run from them."""
    session.install(*CONSTRAINED, ".[test,remote,examples]")
    session.run("pytest", "tests/package", "-m", "soak or not soak", *session.posargs)


@nox.session
def frameworks(session: nox.Session) -> None:
    """Lightning, accelerate, ignite, and the Trainer of Hugging Face, which is large."""
    session.install(*CONSTRAINED, ".[test,remote,examples,frameworks]", "transformers>=5")
    session.run("pytest", "tests/frameworks", *session.posargs)
