"""One self-contained HTML page on a study: `python -m pipeline page`.

`page` puts verdicts, parity, figures, tables, environment and every run with the end of its log
into `page.html.j2`, which Jinja2 fills with every value escaped; `index` is the page of all claims.
"""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

HERE = Path(__file__).parent
TEMPLATES = Environment(
    loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
"""Templates of the page and of the index, in which all text is escaped."""


def looks(*scripts: str) -> dict[str, str]:
    """Style, script and the script's hash, which alone lets a browser run it."""
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in scripts)
    return {
        "style": Markup((HERE / "style.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
