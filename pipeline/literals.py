"""Read a constant of every module in a folder without importing any of them."""

from __future__ import annotations

import ast
from pathlib import Path


def literals(folder: str | Path, name: str) -> dict[str, str]:
    """Value of the module-level string `name` by file stem, for each file that has one."""
    found = {}
    for path in sorted(Path(folder).glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                found[path.stem] = " ".join(str(ast.literal_eval(node.value)).split())
    return found
