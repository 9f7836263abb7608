"""axe-core, the accessibility checker, as one script for a page of `tests.system.chromium`.

It comes in a package of its own lock (envs/axe.lock), fetched once; nothing of it is installed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from tests.system.chromium import Page

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "envs" / "axe.lock"
MEMBER = "axe_playwright_python/axe.min.js"
# Everything that axe has but its experimental rules.
_RUN = """axe.run(document, {resultTypes: ["violations"]}).then(found => ({
    version: axe.version, rules: found.passes.length,
    violations: found.violations.map(one => [one.id, one.impact, one.nodes.length,
        one.nodes[0].html.slice(0, 160), one.nodes[0].failureSummary.slice(0, 300)]),
    unsure: found.incomplete.map(one => [one.id, one.nodes.length,
        one.nodes[0].html.slice(0, 160), one.nodes[0].any.map(why => why.message).join("; ")])}))"""


def source() -> str:
    """The text of axe.min.js; raises RuntimeError with pip's last line where it cannot be had."""
    key = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    final = ROOT / ".cache" / f"axe-{key}.js"
    if not final.is_file():
        final.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--require-hashes", "--requirement", str(LOCK), "--dest", folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["pip said nothing"]
                raise RuntimeError(f"axe-core could not be fetched: {lines[-1]}")
            [wheel] = Path(folder).glob("*.whl")
            written = Path(folder) / "axe.js"
            written.write_bytes(zipfile.ZipFile(wheel).read(MEMBER))
            written.rename(final)
    return final.read_text(encoding="utf-8")


def findings(page: Page, script: str) -> dict[str, Any]:
    """What axe has against the page as it is shown: violations, and what it could not decide.

    The script comes through the debugger, which the page's own policy does not forbid.
    """
    page.evaluate(f"{script};null")
    found = page.evaluate(_RUN)
    assert isinstance(found, dict)
    return found
