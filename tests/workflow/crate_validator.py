"""roc-validator, the public validator of RO-Crates, without a network.

It fetches one thing: the JSON-LD context that a crate names. Here that is the part of RO-Crate
1.1's context (https://w3id.org/ro/crate/1.1/context) that our crates use, so a term that is not in
it is an error here as it is there.

The validator has an environment of its own (envs/validator.lock), made once: it needs an older rich
than the project's tools do. This file is run there, so it imports nothing of the project.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "envs" / "validator.lock"
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


def environment() -> Path:
    """The interpreter that has the validator; made where it is missing, which needs an index.

    Raises RuntimeError with pip's last line where the packages cannot be had.
    """
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    final = ROOT / ".cache" / f"validator-{key}"
    if not final.is_dir():
        final.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent) as folder:
            work = Path(folder) / "env"
            # Our pip fills it: a pip of its own takes as long to install as the validator.
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(work)], check=True)
            command = [sys.executable, "-m", "pip", "--python", str(work / "bin/python"), "install"]
            command += ["--quiet", "--no-deps", "--requirement", str(LOCK)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["pip said nothing"]
                raise RuntimeError(f"no environment for roc-validator: {lines[-1]}")
            # Only `bin/python -m` is used, and that may move.
            work.rename(final)
    return final / "bin" / "python"


def issues(crate: Path, profile: str) -> list[tuple[str, str]]:
    """What the validator finds against a crate (a folder or a zip): severity and line of each."""
    command = [str(environment()), "-I", __file__, str(crate), profile]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return [(severity, line) for severity, line in found]


def _issues(crate: str, profile: str) -> list[tuple[str, str]]:
    from rocrate_validator import services
    from rocrate_validator.models import Severity
    from rocrate_validator.utils.http import HttpRequester

    def reply(url: str, *_: Any, **__: Any) -> _Reply:
        assert url == CONTEXT_URL, f"the validator asks for {url}"
        return _Reply()

    settings = services.ValidationSettings(
        rocrate_uri=crate, profile_identifier=profile, requirement_severity=Severity.RECOMMENDED
    )
    # after the settings, which set up the session
    session = HttpRequester().session
    session.get = session.head = reply
    found = services.validate(settings).get_issues()
    return [
        (i.severity.name, f"{i.check.identifier} {i.violatingEntity}: {i.message}") for i in found
    ]


if __name__ == "__main__":
    print(json.dumps(_issues(*sys.argv[1:])))
