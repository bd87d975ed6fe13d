"""The tail is what to watch: no file of 400 lines, no function of 60, no signature of more than 7."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_ROOMS = ("proxy", "trainer", "storage", "scripts", "tests")
_LINES, _FUNCTION_LINES, _PARAMETERS = 400, 60, 7

_FILES = [str(path.relative_to(_ROOT)) for room in _ROOMS for path in sorted((_ROOT / room).rglob("*.py"))]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Without ``self`` and ``cls``; ``*rest`` and ``**more`` count as one each."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [one.arg for one in (given.vararg, given.kwarg) if one is not None]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def faults(text: str) -> list[str]:
    """What a file breaks of the limits, in words."""
    found = []
    if (lines := len(text.splitlines())) >= _LINES:
        found.append(f"{lines} lines; fewer than {_LINES} are wanted")
    for function in _functions(ast.parse(text)):
        length = (function.end_lineno or 0) - function.lineno + 1
        if length >= _FUNCTION_LINES:
            found.append(f"{function.name} has {length} lines; fewer than {_FUNCTION_LINES} are wanted")
        if len(parameters := _parameters(function)) > _PARAMETERS:
            found.append(f"{function.name} takes {len(parameters)} parameters; {_PARAMETERS} are the most")
    return found


@pytest.mark.parametrize("path", _FILES)
def test_a_file_keeps_to_the_limits(path: str) -> None:
    assert faults((_ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\n" * 399, []),
        ("x = 1\n" * 400, ["400 lines; fewer than 400 are wanted"]),
        ("def f():\n" + "    x = 1\n" * 58, []),
        ("def f():\n" + "    x = 1\n" * 59, ["f has 60 lines; fewer than 60 are wanted"]),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * 59, ["f has 60 lines; fewer than 60 are wanted"]),
        ("def f(a, b, /, c, d, *, e, f, g): ...", []),
        ("def f(a, b, /, c, d, *e, f, **g): ...", []),
        ("def f(self, a, b, c, d, e, f, g): ...", []),
        ("def f(a, b, c, d, e, f, g, h): ...", ["f takes 8 parameters; 7 are the most"]),
        ("def f(a, b, c, d, e, f, *g, **h): ...", ["f takes 8 parameters; 7 are the most"]),
    ],
)
def test_the_limits_themselves(text: str, found: list[str]) -> None:
    assert faults(text) == found


@pytest.mark.parametrize("module", ["proxy.app", "trainer.loop", "scripts.cli"])
def test_only_the_update_worker_loads_torch(module: str) -> None:
    check = f"import sys, {module}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
