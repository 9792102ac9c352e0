"""The program behind a cell: the cell, and of the cells that ran before it those that made what it uses.

Worked example: cells ``import lightning_lab as ll`` · ``x = 1`` · ``y = 2`` · ``def f(): return x``, and the cell
``ll.print(f())``: the program has the first, the second and the fourth, in the order in which they ran.

What a cell uses is every name that it reads and has not bound itself; who made a name is the latest cell that binds it
at its top level. Cells that only change things (``tasks.append(…)``) bind nothing and stay behind.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from lightning_lab.cluster.errors import ProgramError


def program_of(cell: str, earlier: Sequence[str]) -> str:
    """``earlier``: what ran before, oldest first, as it was typed. Raises `ProgramError`: the cell is no Python."""
    try:
        tree = ast.parse(cell)
    except SyntaxError as error:
        raise ProgramError(f"The cell is no Python, so it was not sent: {error.msg} (line {error.lineno}).") from error
    chosen: dict[int, str] = {}
    wanted, met = _needed(tree), False
    while not met:
        before = len(chosen)
        wanted = _choose(earlier, wanted, chosen)
        met = len(chosen) == before  # a function may use what a later cell made: so look again for what is left
    parts = [*(chosen[index] for index in sorted(chosen)), cell]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _choose(earlier: Sequence[str], wanted: set[str], chosen: dict[int, str]) -> set[str]:
    """Add to ``chosen``, by place, the cells that made what is wanted, latest first → what is still wanted."""
    for index in reversed(range(len(earlier))):
        typed = None if index in chosen else _python(earlier[index])
        if typed is None:
            continue
        text, parsed = typed
        made = wanted & _all_bound(parsed)
        if made:
            chosen[index] = text
            wanted = (wanted - made) | _needed(parsed)
    return wanted


def _python(source: str) -> tuple[str, ast.Module] | None:
    """Without lines that speak to the notebook (``%…``, ``!…``); None for cells that are all that, or no Python."""
    if source.startswith("%%"):
        return None
    text = "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))
    try:
        return text, ast.parse(text)
    except SyntaxError:
        return None


def _needed(tree: ast.Module) -> set[str]:
    """Names that are read before the cell itself binds them; a function's body is read when it is called, so later."""
    everything = _all_bound(tree)
    needed: set[str] = set()
    bound: set[str] = set()
    for statement in tree.body:
        function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        needed |= _read(statement) - (everything if function else bound)
        bound |= _bound(statement)
    return needed - set(dir(builtins))


def _all_bound(tree: ast.Module) -> set[str]:
    return {name for statement in tree.body for name in _bound(statement)}


def _read(statement: ast.stmt) -> set[str]:
    """Names that are read anywhere in it."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    changed = {node.target for node in ast.walk(statement) if isinstance(node, ast.AugAssign)}
    return names | {target.id for target in changed if isinstance(target, ast.Name)}


def _bound(statement: ast.AST) -> set[str]:
    """Names that it binds at the top level."""
    found: set[str] = set()
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        waiting.extend(ast.iter_child_nodes(node))
    return found
