"""`module:variable` or `file.py:variable`: the workflow that a command means."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepwell.cli.plurals import article
from stepwell.cli.remedies import Unusable
from stepwell.workflows.workflow import Workflow

if TYPE_CHECKING:
    from stepwell.cli.sessions import Session

SHAPE = "name it as module:variable or file.py:variable"


def load_workflow(target: str, session: Session) -> Workflow:
    """Import the target; if it is a function, call it (with the storage, if it takes one argument)."""
    where, separator, name = target.rpartition(":")
    if not separator or not where or not name:
        raise Unusable(f"{target!r} names no workflow; {SHAPE}")
    # Not on the loop: somebody else's module may well start one of its own.
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    found = _looked_up(module, name, target)
    workflow = found if isinstance(found, Workflow) else _built(found, target, session)
    if not isinstance(workflow, Workflow):
        made = f" that returned {article(type(workflow).__name__)}" if callable(found) else ""
        raise Unusable(
            f"{target!r} is {article(type(found).__name__)}{made}, not a workflow or a function that builds one"
        )
    return workflow


# --- importing --------------------------------------------------------------------------------------------------------


def _from_name(name: str) -> ModuleType:
    _look_here_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Unusable(f"there is no module {error.name!r} here; {SHAPE}") from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _from_file(path: Path) -> ModuleType:
    """Under the name it would have if it were imported, so that its types are those that running it stores."""
    if not path.is_file():
        raise Unusable(f"there is no file {str(path)!r}")
    file = path.resolve()
    top, name = _place_of(file)
    _look_here_first(top)
    try:
        # Inside a package the ordinary way: importing the package may well import this very module.
        module = importlib.import_module(name) if "." in name or name in sys.modules else _executed(file, name)
    except (Exception, SystemExit) as error:
        raise _broken(str(path), error) from error
    if _file_of(module) != file:
        raise Unusable(f"{str(path)!r} has the name of a module that is in use already ({name}); rename it")
    return module


def _executed(file: Path, name: str) -> ModuleType:
    """The module of this very file, whatever else has its name on the path."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _place_of(path: Path) -> tuple[Path, str]:
    """The folder that has to be on the path, and the dotted name of the file from there."""
    parts, folder = [path.stem] if path.stem != "__init__" else [], path.parent
    while (folder / "__init__.py").is_file() and folder.name:
        parts.append(folder.name)
        folder = folder.parent
    return folder, ".".join(reversed(parts))


def _look_here_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _broken(where: str, error: BaseException) -> Unusable:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
    return Unusable(f"{where} can't be imported: {type(error).__name__}: {error}{place}; --traceback shows all")


# --- building ---------------------------------------------------------------------------------------------------------


def _looked_up(module: ModuleType, name: str, target: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    workflows = [key for key, value in vars(module).items() if isinstance(value, Workflow)]
    functions = [
        key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    there = ", ".join([*workflows, *functions][:8])
    raise Unusable(f"{target!r}: there is no {name!r} in it{'; it has ' + there if there else ''}")


def _built(found: Any, target: str, session: Session) -> Any:
    if not callable(found):
        return found
    arguments = (session.storage,) if _wants_storage(found, target) else ()
    try:
        made = found(*arguments)
        return session.run(_awaited(made)) if inspect.isawaitable(made) else made
    except (Exception, SystemExit) as error:
        raise Unusable(f"{target!r} failed: {type(error).__name__}: {error}; --traceback shows where") from error


async def _awaited(made: Any) -> Any:
    return await made


def _wants_storage(function: Any, target: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or any(p.kind is p.KEYWORD_ONLY for p in needed):
        names = ", ".join(p.name for p in needed)
        raise Unusable(f"{target!r} takes {names}; a function that builds a workflow takes nothing, or the storage")
    return len(needed) == 1
