"""The software of a study as an SPDX 2.3 document (JSON), https://spdx.github.io/spdx-spec/v2.3.

Packages, versions and hashes are those of `envs/requirements.lock`; a licence is that of the
package's metadata where it is installed here in that version, as an SPDX expression, else
NOASSERTION. A container image and its own versions are added from the file beside it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from pipeline.errors import SamestepError

NO_ASSERTION = "NOASSERTION"
_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s\\;]+)", re.ASCII)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})", re.ASCII)
_NOT_AN_ID = re.compile(r"[^A-Za-z0-9.-]")
# Names of licences from before expressions, as the Python Package Index defines them.
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
# What the facts of an image name besides the packages that `make image` pins.
_OF_THE_IMAGE = ("python", "torch", "cuda", "numpy", "horovod", "apex")


@dataclass(frozen=True)
class Pinned:
    """One package of the lock; `hashes` are the SHA-256 sums of all its files on the index."""

    name: str
    version: str
    hashes: tuple[str, ...]


def pinned(lock: str) -> list[Pinned]:
    """The packages of a lock file in its order; raises SamestepError where it pins none."""
    packages: list[tuple[str, str, list[str]]] = []
    for line in lock.splitlines():
        if start := _PINNED.match(line):
            packages.append((start[1], start[2], []))
        if packages:
            packages[-1][2].extend(_HASH.findall(line))
    if not packages:
        raise SamestepError(
            "the lock pins no package; expected lines `name==version`, as `make lock` writes them"
        )
    return [Pinned(name, version, tuple(hashes)) for name, version, hashes in packages]


def licence_of(name: str, version: str) -> str:
    """SPDX expression by the metadata of the installed package, or NOASSERTION."""
    try:
        known = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return NO_ASSERTION
    # A local part names the variant of a build, such as that for processors alone.
    if known["Version"].partition("+")[0] != version.partition("+")[0]:
        return NO_ASSERTION
    classes = [text.split(" :: ")[-1] for text in known.get_all("Classifier") or []
               if text.startswith("License :: ")]  # fmt: skip
    named = [_CLASSIFIERS[one] for one in classes if one in _CLASSIFIERS]
    keys = ("License-Expression", "License")
    stated = [text for key in keys for text in known.get_all(key) or []]
    for text in (*stated, " AND ".join(named)):
        try:
            return str(canonicalize_license_expression(text))
        except InvalidLicenseExpression:
            continue
    return NO_ASSERTION


def document(
    study: str,
    lock: str,
    created: str,
    versions: Mapping[str, str],
    image: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The SPDX document; `created` is ISO 8601 in UTC, `versions` those that the runs loaded.

    `image` is the content of the file beside the container image, None where no run was inside one.
    Equal inputs on one environment give an equal document.
    """
    locked = [_locked(one) for one in pinned(lock)]
    # What runs loaded that the lock does not pin: Python, and Horovod, which is compiled.
    known = {one["name"] for one in locked}
    locked += [
        _package(name, versions[name])
        for name in ("python", "horovod")
        if versions.get(name) and name not in known
    ]
    root = _package("samestep", versions.get("samestep", ""), "Apache-2.0")
    described, packages = [root], [root, *locked]
    related = [(root, "DEPENDS_ON", one) for one in locked]
    if image is not None:
        whole = _package("samestep-image", str(image["image_digest"]))
        inside = [
            _package(f"image-{name}", str(image["versions"][name]))
            for name in _OF_THE_IMAGE
            if image["versions"].get(name)
        ]
        described.append(whole)
        packages += [whole, *inside]
        related += [(whole, "CONTAINS", one) for one in inside]
    digest = hashlib.sha256((lock + str(image)).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"samestep-{study}",
        "documentNamespace": f"urn:samestep:sbom:{study}:{digest}",
        "creationInfo": {"created": created, "creators": ["Tool: samestep"]},
        "documentDescribes": [one["SPDXID"] for one in described],
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": one["SPDXID"],
                "relationshipType": kind,
                "relatedSpdxElement": other["SPDXID"],
            }
            for one, kind, other in related
        ],
    }


def _locked(one: Pinned) -> dict[str, Any]:
    package = _package(one.name, one.version, licence_of(one.name, one.version))
    package["externalRefs"] = [
        {
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:pypi/{canonicalize_name(one.name)}@{one.version}",
        }
    ]
    # Which of its files was installed the lock does not say: no sum is that of the package.
    if one.hashes:
        package["comment"] = "SHA-256 of its files: " + " ".join(sorted(one.hashes))
    return package


def _package(name: str, version: str, licence: str = NO_ASSERTION) -> dict[str, Any]:
    return {
        "SPDXID": f"SPDXRef-{_NOT_AN_ID.sub('-', name)}",
        "name": name,
        **({"versionInfo": version} if version else {}),
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseConcluded": NO_ASSERTION,
        "licenseDeclared": licence,
        "copyrightText": NO_ASSERTION,
    }
