"""The user's script, and how workers come by what it has set: `start_method`.

- ``"fresh"``: workers descend from a process in which the script never ran.
- ``"main"``: that process imports the script first, as `multiprocessing` does for ``spawn``: as the
  module ``__mp_main__``, so that what stands below ``if __name__ == "__main__"`` does not run.
  `ImportScript` says which. Classes and functions of the script travel by name then.
- ``"fork"``: that process is forked from the training process, and has all that is there.
- ``"thread"``: workers are threads of the training process: see `swift_loader.worker.threads`.
- ``"auto"``: ``"main"`` for a script with such a guard, else ``"fresh"``.
"""

from __future__ import annotations

import ast
import multiprocessing.process
import multiprocessing.spawn
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from swift_loader.batch.identity import main_is_shared
from swift_loader.errors import ConfigError
from swift_loader.transport.table import message
from swift_loader.worker.global_orders import Orders, warn_of_other_orders

__all__ = [
    *("ImportScript", "ProcessMethod", "ScriptState", "StartMethod", "chosen_method"),
    *("how_to_import", "import_script", "names_in_workers", "state"),
]

ProcessMethod = Literal["main", "fresh", "fork"]
StartMethod = ProcessMethod | Literal["thread"]


@message
@dataclass(frozen=True, slots=True)
class ImportScript:
    """Import the script before any worker is forked.

    `how` as `how_to_import` gives it. `orders`: of the training process's global lists.
    """

    how: dict[str, Any]
    orders: Orders


@dataclass
class ScriptState:
    """How the script came into this process, where workers are forked from it."""

    forked: bool = False
    importing: bool = False
    imported: bool = False  # or that began
    failure: BaseException | None = None  # what importing it raised

    def check_not_importing(self) -> None:
        """Raises `ConfigError` in a process that imports a script without a guard."""
        if self.importing:
            raise ConfigError(
                "the script starts workers while it is imported for workers: put what it does "
                'below if __name__ == "__main__", or give start_method="fresh"'
            )

    def check(self) -> None:
        """Raises what importing the script raised."""
        if self.failure is not None:
            raise self.failure


state = ScriptState()


def chosen_method(wanted: str) -> StartMethod:
    """`wanted`, with ``"auto"`` decided for the script that runs."""
    if wanted == "auto":
        return "main" if how_to_import() is not None and _script().guarded else "fresh"
    assert wanted in ("main", "fresh", "fork", "thread")
    return wanted  # type: ignore[return-value]


def how_to_import() -> dict[str, Any] | None:
    """What `import_script` needs; None where the script has no file that can be imported."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if path is None or not os.path.isfile(path) or str(name).endswith("__main__"):
        return None
    # As `multiprocessing.spawn.get_preparation_data` does, which refuses in a process that is
    # still being spawned: a loader may be an argument of that.
    started_in = getattr(multiprocessing.process, "ORIGINAL_DIR", None)
    how: dict[str, Any] = {
        "name": "swift_loader",
        "authkey": bytes(multiprocessing.process.current_process().authkey),
        "orig_dir": started_in,
        "sys_argv": list(sys.argv),
    }
    if name is not None:
        return {**how, "init_main_from_name": name}
    return {**how, "init_main_from_path": os.path.normpath(os.path.join(started_in or "", path))}


def import_script(how: dict[str, Any], orders: Orders) -> None:
    """Import it as ``__mp_main__``. What that raises is raised again in each worker.

    Warns of global lists that do not have the same `orders`.
    """
    state.importing = state.imported = True
    main_is_shared()
    try:
        multiprocessing.spawn.prepare(how)
        warn_of_other_orders(orders)
    except BaseException as error:  # noqa: BLE001 - the workers say it
        state.failure = error
    finally:
        state.importing = False


def names_in_workers(method: StartMethod) -> frozenset[str]:
    """The global names of the script that workers have by this method, the same or their own."""
    if method in ("thread", "fork"):
        return frozenset(vars(sys.modules["__main__"]))
    return _script().names if method == "main" else frozenset()


@dataclass(frozen=True)
class _Script:
    guarded: bool
    names: frozenset[str]


def _script() -> _Script:
    path = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):  # compiled, or gone
        return _Script(False, frozenset())


@lru_cache(1)
def _parsed(path: Path, changed_ns: int) -> _Script:
    body = ast.parse(path.read_bytes()).body
    guards = [one for one in body if isinstance(one, ast.If) and _is_guard(one.test)]
    outside = {name for one in body if one not in guards for name in _bound(one)}
    inside = {name for guard in guards for one in guard.body for name in _bound(one)}
    outside |= {name for guard in guards for one in guard.orelse for name in _bound(one)}
    return _Script(bool(guards), frozenset(outside - inside))


def _is_guard(test: ast.expr) -> bool:
    for one in ast.walk(test):
        if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Eq):
            sides = (one.left, *one.comparators)
            names = [side.id for side in sides if isinstance(side, ast.Name)]
            values = [side.value for side in sides if isinstance(side, ast.Constant)]
            if names == ["__name__"] and values == ["__main__"]:
                return True
    return False


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The global names that a statement of a module's body gives a value."""
    todo: list[ast.AST] = [statement]
    while todo:
        one = todo.pop()
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield one.name
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id
        elif not isinstance(one, ast.Lambda):
            todo += ast.iter_child_nodes(one)
