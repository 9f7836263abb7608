"""Criteria of each badge of the ACM's artifact review (version 1.1), met or not.

https://www.acm.org/publications/policies/artifact-review-and-badging-current. A self-check grants
nothing: it lists what reviewers would find missing. What no file of ours can tell counts as unmet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.documents import read_text
from pipeline.errors import SamestepError

# An identifier's form, and prefixes that stand for one: 10.5072 is the test prefix of DataCite.
_DOI = re.compile(r"10\.\d{4,9}/\S+", re.ASCII)
_PLACEHOLDER = re.compile(r"10\.(0000|1234|5072|5555|9999)/|x{3,}|0{5,}|placeholder|todo", re.I)
_DOCUMENTS = ("README.md", "LICENSE", "CITATION.cff", "docs", "envs/requirements.lock")
_FOR_REUSE = ("docs", "tests", "workflow/schemas", "pipeline/strategies", "CHANGELOG.md")


@dataclass(frozen=True)
class Check:
    """One criterion of a badge: what it asks for, whether that is met, and on what grounds."""

    badge: str
    asks: str
    met: bool
    grounds: str


def checks(root: Path, numbers: Mapping[str, Any], commits: Sequence[str]) -> list[Check]:
    """All criteria in the order of the badges.

    `root` is the checkout, `numbers` the paper's facts, `commits` the git commits that the records
    name.
    """
    runs, claims, appendix = numbers["runs"], numbers["claims"], numbers["appendix"]
    kick, image = appendix["kick"], appendix["image"]
    clean = [one for one in commits if "changes" not in one and one != "unknown"]
    licence = (root / "LICENSE").is_file()
    tested = claims and any(claims[word] for word in ("reproduced", "not_reproduced", "undecided"))
    rows = [
        ("available", "deposited in a public archive under a persistent identifier",
         *_deposited(root / "CITATION.cff")),
        ("functional", "documented", *_there(root, _DOCUMENTS)),
        ("functional", "consistent: one published state of the source made every run",
         len(commits) == 1 and len(clean) == 1,
         f"the records name {', '.join(commits) or 'no commit'}"),
        ("functional", "complete: every planned run has a record", bool(runs["any_finished"]),
         f"all {runs['planned']} ended ok" if runs["all_finished"] else
         f"of {runs['planned']}, {runs['finished']} ended ok; the others have their reasons"),
        ("functional", "exercisable: a first result within half an hour",
         bool(kick and kick["fits"]),
         f"the shortest run took {kick['time']}, set-up not counted" if kick else
         "no run finished"),
        ("reusable", "structured for reuse: documents, tests, schemas", *_there(root, _FOR_REUSE)),
        ("reusable", "a licence that allows reuse", licence,
         appendix["licence"] if licence else "none"),
        ("reusable", "the environment as an image that the records name",
         image.startswith("sha256:"), image),
        ("reproduced", "the claims of the paper are tested by the artifact", bool(tested),
         f"of {claims['total']}, {claims['untested']} are not testable here" if claims else
         "no claims"),
        ("reproduced", "obtained by a team other than the authors, with this artifact", False,
         "no record tells who ran it; only reviewers can state this"),
    ]  # fmt: skip
    return [Check(*one) for one in rows]


def _deposited(path: Path) -> tuple[bool, str]:
    """A verdict on the identifier in CITATION.cff, with its grounds."""
    try:
        cited = yaml.safe_load(read_text(path, "", SamestepError)) if path.is_file() else {}
        stated = [cited.get("doi"), *(
            one.get("value") for one in cited.get("identifiers", []) if one.get("type") == "doi"
        )]  # fmt: skip
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise SamestepError(f"{path} is no citation file ({reason}); correct it") from None
    named = [str(text) for text in stated if text]
    real = [text for text in named if _DOI.search(text) and not _PLACEHOLDER.search(text)]
    if real:
        return True, f"CITATION.cff names {real[0]}; that it resolves was not looked up"
    if named:
        return False, f"the DOI in CITATION.cff, {named[0]}, is a placeholder or none"
    return False, "CITATION.cff names no DOI: deposit the file of make archive and add it"


def _there(root: Path, names: Sequence[str]) -> tuple[bool, str]:
    missing = [name for name in names if not (root / name).exists()]
    return not missing, f"missing: {', '.join(missing)}" if missing else ", ".join(names)
