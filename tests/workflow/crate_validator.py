"""roc-validator, the public validator of RO-Crates, without a network.

It fetches one thing: the JSON-LD context that a crate names. Here that is the part of RO-Crate
1.1's context (https://w3id.org/ro/crate/1.1/context) that our crates use, so a term that is not in
it is an error here as it is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONTEXT_URL = "https://w3id.org/ro/crate/1.1/context"
_SCHEMA_ORG = (
    "CompletedActionStatus ComputerLanguage ControlAction CreateAction CreativeWork Dataset "
    "FailedActionStatus HowTo HowToStep OrganizeAction SoftwareApplication SoftwareSourceCode "
    "about actionStatus additionalType datePublished description encodingFormat endTime error "
    "exampleOfWork hasPart identifier instrument license mainEntity mentions name object "
    "programmingLanguage result softwareVersion startTime step url version workExample"
).split()
CONTEXT = {
    **{term: f"http://schema.org/{term}" for term in _SCHEMA_ORG},
    "File": "http://schema.org/MediaObject",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "output": "https://bioschemas.org/ComputationalWorkflow#output",
}


class _Reply:
    """What `requests` would give for the context."""

    status_code = 200
    headers = {"Content-Type": "application/ld+json"}  # noqa: RUF012
    text = json.dumps({"@context": CONTEXT})
    content = text.encode()
    ok, is_redirect, history, url = True, False, (), CONTEXT_URL

    def json(self) -> Any:
        return json.loads(self.text)

    def raise_for_status(self) -> None: ...


def issues(crate: Path, profile: str, severity: str) -> list[str]:
    """What the validator finds against a crate (a folder or a zip), a line each."""
    from rocrate_validator import services
    from rocrate_validator.models import Severity
    from rocrate_validator.utils.http import HttpRequester

    def reply(url: str, *_: Any, **__: Any) -> _Reply:
        assert url == CONTEXT_URL, f"the validator asks for {url}"
        return _Reply()

    settings = services.ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier=profile,
        requirement_severity=getattr(Severity, severity),
    )
    # after the settings, which set up the session
    session = HttpRequester().session
    session.get = session.head = reply
    found = services.validate(settings).get_issues()
    return [f"{i.check.identifier} {i.violatingEntity}: {i.message}" for i in found]


if __name__ == "__main__":
    import sys

    print("\n".join(issues(Path(sys.argv[1]), sys.argv[2], sys.argv[3])) or "valid")
