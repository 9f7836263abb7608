"""Read a study file and validate it at the door (closed schema, then arithmetic)."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from pipeline.errors import StudyError
from pipeline.expansion import expand
from pipeline.profiling import profiled
from pipeline.schemas import describe
from pipeline.text import one_line, unprintable

SCHEMA_FILE = Path(__file__).parents[1] / "workflow" / "schemas" / "config.schema.yaml"


def load_study(path: Path) -> dict[str, Any]:
    """The validated mapping of a study file; raises StudyError naming the key, value and rule."""
    try:
        text = path.read_text(encoding="utf-8")
        # YAML 1.1 reads JSON's 1e-08 as a string, so JSON is read as what it is.
        study = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except FileNotFoundError:
        raise StudyError(f"study file {path} does not exist; see workflow/config") from None
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        raise StudyError(f"study file {path} is not YAML: {' '.join(str(error).split())}") from None
    check_study(study, path)
    return dict(study)


def check_study(study: Any, where: Path | str) -> None:
    """Raise StudyError unless `study` fits the schema and every run of it is possible."""
    schema = yaml.safe_load(SCHEMA_FILE.read_text(encoding="utf-8"))
    error = best_match(Draft202012Validator(schema).iter_errors(study))
    if error is not None:
        raise StudyError(f"{where} {describe(error)}; see {SCHEMA_FILE.name}")
    _check_texts(study, where)
    tokenizer = study["tokenizer"]
    if tokenizer.get("vocab_size", 0) > study["model"]["vocab_size"]:
        raise StudyError(
            f"{where}: tokenizer.vocab_size {tokenizer['vocab_size']} is over model.vocab_size "
            f"{study['model']['vocab_size']}; raise model.vocab_size"
        )
    expand(study)
    profiled(study)


def _check_texts(study: Mapping[str, Any], where: Path | str) -> None:
    """Titles and labels may hold any character that can be shown, and have to show one."""
    texts = {"title": study["title"]}
    texts |= {f"cells.{n}.label": cell["label"] for n, cell in enumerate(study["cells"])}
    for key, text in texts.items():
        if wrong := unprintable(text):
            raise StudyError(
                f"{where}: {key} {text!r} holds {wrong!r}, which cannot be printed; leave it out"
            )
        if not one_line(text).strip():
            raise StudyError(f"{where}: {key} {text!r} is blank; write what readers should see")


def font_warning(study: Mapping[str, Any]) -> str | None:
    """One line on characters of titles and labels that figures or PDF show as boxes, or None.

    Their fonts come with matplotlib and typst, so that pages are the same everywhere; none of them
    has the wide characters of Chinese, Japanese and Korean, and typst's have no emoji.
    """
    texts = [study["title"], *(cell["label"] for cell in study["cells"])]
    found = dict.fromkeys(c for text in texts for c in text if _is_wide(c))
    if not found:
        return None
    return (
        f"warning: the fonts of figures or PDF have no {' '.join(found)} and show a box for each; "
        "use Latin, Greek or Cyrillic letters in title and labels"
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F")
