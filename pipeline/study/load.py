"""Read a study file and validate it at the door (closed schema, then arithmetic)."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

from pipeline.documents import read_document, read_made
from pipeline.errors import StudyError, refuse, without_fix
from pipeline.schemas import AGAIN, CONFIG_SCHEMAS, describe, first_error, validate, validator
from pipeline.study.expansion import expand, plugin, profiled
from pipeline.study.model_files import with_files
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.text import is_visible, seen, unprintable

SCHEMA_FILE = CONFIG_SCHEMAS / "config.schema.yaml"
CONFIG = CONFIG_SCHEMAS.parent / "config"
MERGED = ("model", "optimiser", "workload", "cluster")
"""Parts of a study of which one that extends another may state some keys only."""
OWN = ("title", "claims")
"""Parts of a study that one that extends it does not take over: a text about that study alone."""
POINTS = "points.yaml"
"""Name of the file of a study of points, in its folder."""
RESOLVED = "study.json"
"""Name of a study in full, which the workflow writes: its paths are from the working folder."""


@dataclass(frozen=True)
class PointsStudy:
    """A study of steps that were measured elsewhere: no cells, nothing runs, a paper on errors."""

    name: str
    title: str
    day: date


def load_points(path: Path) -> PointsStudy | None:
    """The study of points of a file; None of one with cells. Raises StudyError on a wrong one."""
    content = read_document(path, "study file", StudyError)
    return check_points(content, path) if _has_points(content) else None


def check_points(content: Mapping[str, Any], where: Path | str) -> PointsStudy:
    """The study of points of a mapping; raises StudyError naming the key, value and rule."""
    validate(content, "points", where, StudyError, "see points.schema.yaml")
    _check_text("title", content["title"], where)
    try:
        day = date.fromisoformat(content["date"])
    except ValueError as fault:
        raise StudyError(
            f"{where}: date {content['date']!r} is none ({fault}); correct it"
        ) from None
    return PointsStudy(content["study"], content["title"], day)


def _has_points(content: Any) -> bool:
    return isinstance(content, dict) and "points" in content


def _refuse_points(content: Any, where: Path | str) -> None:
    if _has_points(content):
        raise StudyError(
            f"{where}: a study of points has no runs, which this needs; `make paper` makes its "
            "paper, `python -m pipeline predict --score` prints its errors"
        )


def load_study(path: Path) -> Study:
    """The study of a file; raises StudyError naming the key, value and rule."""
    return check_study(extended(read_document(path, "study file", StudyError), path), path)


def extended(content: Any, path: Path) -> Any:
    """The content of a study file over that of the study which its key `extends` names.

    See `_merged`. Relative paths become paths from the working folder, and files that `model` names
    are read (`model_files`). Content that is no mapping is returned as it is. Raises StudyError
    where there is no such study, where one extends itself, or where the first has no name or that
    of a study that it extends.
    """
    if not isinstance(content, dict):
        return content
    name, parts, files = content.get("study"), [_in_place(content, path)], list[Path]()
    while "extends" in content:
        given = content["extends"]
        extends = f"{path}: extends {given!r}"
        if not isinstance(given, str):
            raise StudyError(f"{extends} is no name of a study; see workflow/config")
        if "study" not in parts[0]:
            raise StudyError(
                f"{path}: it extends {given!r} and has no name of its own, so its runs would "
                "replace those of that study; add the key `study`"
            )
        try:
            base = find_study(given, path.parent).resolve()
            files.append(path.resolve())
        except (OSError, ValueError, RuntimeError) as error:
            # RuntimeError: a symlink that leads to itself, before Python 3.13.
            raise StudyError(f"{path}: extends {given[:80]!r} is no path ({error})") from None
        if base in files:
            raise StudyError(f"{extends} comes back to itself; extend another study")
        content = read_document(base, "study file", StudyError)
        if not isinstance(content, dict):
            raise StudyError(f"{path}: extends {base}, which is no mapping; extend a study")
        if content.get("study") == name:
            raise StudyError(
                f"{files[0]}: it has the name of the study {name!r} that it extends, so "
                "its runs would replace those; give it another name"
            )
        path = base
        parts.append(_in_place(content, path))
    return reduce(_merged, reversed(parts))


def _merged(whole: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping `whole` with what `content` states in its place; null leaves a key out.

    Keys of `MERGED` are taken one by one, every other one whole; those of `OWN` are not taken over.
    """
    whole_schema: Any = validator("config").schema
    schema = whole_schema["properties"]
    made = {key: value for key, value in whole.items() if key not in OWN}
    for key, value in content.items():
        if key in MERGED and isinstance(value, dict) and isinstance(whole.get(key), dict):
            value = _without_nulls(whole[key] | value, schema[key]["properties"])
        made[key] = value
    # Named cells have several profiled runs for the claims of that study, which are not taken over.
    profile = whole.get("profile")
    if "profile" not in content and isinstance(profile, dict) and "cells" in profile:
        made["profile"] = {key: profile[key] for key in profile if key == "steps"}
    del made["extends"]
    return _without_nulls(made, schema)


def _without_nulls(mapping: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The mapping without nulls; a misspelt key stays, so that validation names it."""
    return {key: v for key, v in mapping.items() if v is not None or key not in known}


def _in_place(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of the study file `path`, its relative paths taken from the working folder.

    The name of a data set or a tokeniser is a path where such a folder is there, else one of the
    hub; that of a tokeniser without revision is always a path. Files that `model` names are read.
    """
    made, folder = dict(content), path.parent.resolve()
    # Paths of a study in full are from the working folder already, and its files were read.
    if path.name == RESOLVED:
        return made
    if isinstance(model := content.get("model"), dict):
        made["model"] = with_files(model, folder, extends="extends" in content)
    if folder == Path.cwd():
        return made

    def moved(path: Any, *, is_path: bool = True) -> Any:
        if not isinstance(path, str) or not path.strip() or Path(path).is_absolute():
            return path
        place = folder / path
        return os.path.relpath(place) if is_path or place.is_dir() else path

    for part in ("corpus", "tokenizer"):
        if not isinstance(own := content.get(part), dict):
            continue
        made[part] = own = dict(own)
        if isinstance(own.get("paths"), list):
            own["paths"] = [moved(path) for path in own["paths"]]
        if "name" in own:
            is_path = part == "tokenizer" and own.get("revision") is None
            own["name"] = moved(own["name"], is_path=is_path)
    return made


def find_study(given: str, folder: Path = Path()) -> Path:
    """The file of a study given by a path, relative to `folder`, or by a shipped study's name.

    Raises StudyError for a word that is neither, with the names that are nearest to it.
    """
    path = folder / given
    shipped = shipped_studies() | {one.parent.name: one for one in CONFIG.glob(f"*/{POINTS}")}
    try:
        if (path.exists() and not path.is_dir()) or path.suffix or "/" in given:
            return path
        if given in shipped:
            return shipped[given]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StudyError(f"{given[:80]!r} is no path of a study ({reason})") from None
    names = difflib.get_close_matches(given, shipped) or sorted(shipped)
    raise StudyError(
        f"there is no study {given[:80]!r}; give a study file or one of {', '.join(names)}"
    )


def shipped_studies() -> dict[str, Path]:
    """The file of each study with runs that this project comes with, by its name.

    The name is that of the folder; another study of the same publication lies beside it, so that
    `bai2022/ablations.yaml` is `bai2022-ablations`.
    """
    files = [path for path in CONFIG.glob("*/*.yaml") if path.name not in ("claims.yaml", POINTS)]
    named = {f"{path.parent.name}-{path.stem}".removesuffix("-study"): path for path in files}
    return dict(sorted(named.items()))


def results_folder(study_file: Path, *, of_points: bool = False) -> Path:
    """`results/<study>` by the name in a study file, the rest of which may be of another version.

    Raises StudyError where it states none, so that no other folder can be meant, and of a study of
    points, unless that is asked for.
    """
    content = read_document(study_file, "study file", StudyError)
    if not of_points:
        _refuse_points(content, study_file)
    name = content.get("study") if isinstance(content, dict) else None
    if not validator("config#name").is_valid(name):
        raise StudyError(
            f"study file {study_file}: study {name!r} is no name of a study; expected lower-case "
            "letters, digits and hyphens"
        )
    return Path("results", str(name))


def check_study(content: Any, where: Path | str) -> Study:
    """The study of a mapping; raises StudyError unless it fits and every run is possible."""
    _refuse_points(content, where)
    if (error := first_error(content, "config")) is not None:
        mend = f"see {SCHEMA_FILE.name}"
        if error.validator == "required" and not error.path:
            mend = "state it, or `extends: smoke`, which has all that a study needs"
        raise StudyError(f"{where} {describe(error)}; {mend}")
    study = Study.of(content)
    labels = [arm.label for arm in study.arms]
    _check_text("title", study.title, where)
    for number, label in enumerate(labels):
        _check_text(f"cells.{number}.label", label, where)
    looks = Counter(map(seen, labels))
    vocabulary, model = study.tokenizer.get("vocab_size", 0), study.model
    begin, steps = study.begin_steps, study.workload.steps
    arms = [arm.name for arm in study.arms]
    places = [f"{arm.name}/n{nodes}" for arm in study.arms for nodes in arm.nodes]
    lengths = {arm.name: arm.optimiser.schedule_steps for arm in study.arms
               if arm.optimiser.schedule == "constant"}  # fmt: skip
    refuse(StudyError, f"{where}: ", [
        *((count > 1, f"cell label {label!r} stands {count} times; make it unique")
          for label, count in Counter(labels).items()),
        *((count > 1,
           f"{count} cell labels look alike, as {look!r}; make them differ in more than blanks and "
           "what nobody sees") for look, count in looks.items()),
        (vocabulary > model.vocab_size,
         f"tokenizer.vocab_size {vocabulary} is over model.vocab_size {model.vocab_size}; raise "
         "model.vocab_size"),
        *((length is not None,
           f"{arm}: optimiser.schedule_steps {length} belongs to the schedule linear, given "
           "constant; leave it out") for arm, length in lengths.items()),
        (begin is not None and begin >= steps,
         f"beginnings.steps {begin} are no beginning of {steps} steps; lower it or raise "
         "workload.steps"),
        *((place not in places,
           f"beginnings.whole names {place!r}; use one of {', '.join(places)}")
          for place in study.whole),
        *((name not in arms, f"profile.cells names {name!r}; use one of {', '.join(arms)}")
          for name in study.profile_cells),
    ])  # fmt: skip
    # An archive may name strategies that this checkout does not have. Whether one has a layout on
    # so many nodes is asked before it runs: it may be projected to others.
    for number, arm in enumerate(study.arms if Path(where).name != RESOLVED else ()):
        try:
            plugin(arm.strategy, arm.options)
        except StudyError as fault:
            raise StudyError(f"{where}: cells.{number} ({arm.name}): {fault}") from None
    # Every run is made once: what is impossible in one of them is an error of the study.
    expand(study)
    profiled(study)
    return study


def load_spec(path: Path) -> RunSpec:
    """The run spec of a file; raises StudyError naming the key, value and rule.

    The workflow writes it, so whatever is wrong, the fix is to have it written again.
    """
    content = read_made(path, "run spec", StudyError, "snakemake")
    validate(content, "spec", f"run spec {path}", StudyError)
    try:
        return RunSpec.from_dict(content)
    except StudyError as fault:
        raise StudyError(f"run spec {path}: {without_fix(fault)}; {AGAIN['spec']}") from None


def _check_text(key: str, text: str, where: Path | str) -> None:
    wrong = unprintable(text)
    refuse(StudyError, f"{where}: {key} {text!r} ", [
        (wrong, f"holds {wrong!r}, which cannot be printed; leave it out"),
        (not is_visible(text), "is blank; write what readers should see"),
    ])  # fmt: skip
