"""A model's configuration and starting weights, in files or in a commit of the Hugging Face hub.

Their content takes the place of their names in a study, with its hash, so that a training is
identified by content, and an archive needs no file of elsewhere. Nothing that is read can run code:
a configuration is JSON, and weights are safetensors.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.documents import read_document
from pipeline.errors import StudyError, refuse
from pipeline.files import sha256_of_file, sha256_once

SIZES = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "num_heads": ("num_attention_heads", "n_head"),
    "context": ("max_position_embeddings", "n_positions"),
    "vocab_size": ("vocab_size",),
}
"""Keys of a study's model, and their names in a config.json, where GPT-2's are of its own."""

UNUSED = (
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip
"""Names in a config.json that are no part of a model here: a run states its own numbers."""

REFUSED = {
    "auto_map": "names code of the hub, and none is run; use a class of the library transformers",
    "trust_remote_code": "asks for code of the hub, and none is run; leave it out",
    "quantization_config": "is of quantised weights, which are not trained; give the full ones",
}
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def with_files(model: Mapping[str, Any], folder: Path, *, extends: bool) -> dict[str, Any]:
    """The section `model` of a study file in `folder`, with what its files and the hub hold.

    `config: FILE`, or `hub` with `revision`, gives sizes, architecture, configuration and
    `config_sha256`; of sizes and architecture those that the section states itself hold. `weights`,
    a path or `true` for those of the commit, gets `weights_sha256`. A section with these hashes was
    read already. Where the study `extends` another, nothing that another file gave there stays.
    Raises StudyError in one line.
    """
    made = dict(model)
    if "trust_remote_code" in made:
        raise StudyError(f"model.trust_remote_code {REFUSED['trust_remote_code']}")
    hub, revision, weights = (made.get(key) for key in ("hub", "revision", "weights"))
    if "config_sha256" not in made:
        if hub is not None or revision is not None:
            is_commit = isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision)
            refuse(StudyError, "model.", [
                (not isinstance(hub, str) or not hub.strip(),
                 f"hub {hub!r} is no name of the hub; give `owner/name`"),
                (not is_commit,
                 f"revision {revision!r} is no commit, and a branch or tag may move; give the 40 "
                 f"hexadecimal digits of a commit of {hub}"),
                (made.get("config") is not None,
                 "hub has a configuration, and model.config is another; give one"),
            ])  # fmt: skip
            file = _fetched(made["hub"], made["revision"], "config.json")
            made |= _of_config(made, file, f"model.hub {hub}:")
        elif isinstance(made.get("config"), str):
            file = _place(made["config"], folder)
            made |= _of_config(made, file, "model.config")
        if extends and "config" in made:
            made = dict.fromkeys(("config_sha256", "hub", "revision")) | made
    if "weights" in made and "weights_sha256" not in made:
        made["weights_sha256"] = None
        if weights is not None:
            path = _weights_path(weights, made, folder)
            made["weights_sha256"] = weights_sha256(path)
            made["weights"] = os.path.relpath(path)
    return made


def _of_config(model: Mapping[str, Any], path: Path, name: str) -> dict[str, Any]:
    """Keys of `model` by a config.json; those of its own sizes and class hold."""
    content = read_document(path, name, StudyError)
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise StudyError(
            f"{name} {path} has no model_type; give a config.json as save_pretrained writes it"
        )
    for key in REFUSED:
        if content.get(key):
            raise StudyError(f"{name} {path}: {key} {REFUSED[key]}")
    made: dict[str, Any] = {"config_sha256": sha256_of_file(path)}
    if model.get("architecture") is None:
        kinds = content.get("architectures")
        if not isinstance(kinds, list) or len(kinds) != 1:
            raise StudyError(
                f"{name} {path} names {kinds or 'no class'} in architectures, expected one; state "
                "model.architecture"
            )
        made["architecture"] = kinds[0]
    config = {key: value for key, value in content.items() if key not in UNUSED}
    for size, names in SIZES.items():
        given = next((config.pop(key) for key in names if key in config), None)
        made[size] = given if model.get(size) is None else model[size]
        if made[size] is None:
            raise StudyError(f"{name} {path} has no {names[0]}; state model.{size}")
        if size == "context" and given is not None:
            # Those that the model has, of which sequences may fill fewer.
            config["max_position_embeddings"] = given
    return made | {"config": config}


def _weights_path(weights: Any, model: Mapping[str, Any], folder: Path) -> Path:
    """The file of `model.weights`, its index, or a folder."""
    if weights is True and model.get("hub") is not None:
        pin = model["hub"], model["revision"]
        path = _fetched(*pin, WEIGHTS, INDEX)
        for file in _of_index(path) if path.name == INDEX else ():
            _fetched(*pin, file.name)
        return path
    if not isinstance(weights, str):
        raise StudyError(
            f"model.weights {weights!r} is no path; give a file or folder of safetensors, or true "
            "beside model.hub and model.revision for those of that commit"
        )
    return _place(weights, folder)


def weights_sha256(path: Path) -> str:
    """SHA-256 of a file, or of what `sha256sum` prints of several in the order of their names."""
    files = weights_files(path)
    if len(files) == 1:
        return sha256_once(files[0])
    lines = "".join(f"{sha256_once(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def weights_files(path: Path) -> list[Path]:
    """The safetensors of a file, a folder or an index; StudyError without any, or for a pickle."""
    if path.is_dir():
        pickles = sorted(one for one in path.iterdir() if one.suffix in PICKLED)
        own = [path / name for name in (WEIGHTS, INDEX)]
        path = next((one for one in (*own, *pickles) if one.exists()), own[0])
    files = _of_index(path) if path.name.endswith(".index.json") else [path]
    for file in files:
        if file.suffix in PICKLED:
            raise StudyError(
                f"model.weights {file} is a pickle, which runs code as it is read; give safetensors"
                ", as save_pretrained writes them"
            )
        if file.suffix != ".safetensors" or not file.is_file():
            raise StudyError(
                f"model.weights {file} is no file of safetensors; give one, or a folder that "
                "save_pretrained has written, from the study's folder or the working folder"
            )
    return files


def _of_index(path: Path) -> list[Path]:
    """The files beside an index that it names."""
    index = read_document(path, "model.weights", StudyError)
    named = index.get("weight_map") if isinstance(index, dict) else None
    names = list(named.values()) if isinstance(named, dict) else []
    if not names or any(not isinstance(one, str) or Path(one).name != one for one in names):
        raise StudyError(
            f"model.weights {path} has no weight_map to files beside it; give an index as "
            "save_pretrained writes it"
        )
    return [path.parent / name for name in sorted({*names})]


def _place(given: str, folder: Path) -> Path:
    """A path from the study's folder, or from the working folder where it is there alone."""
    try:
        is_there = (folder / given).exists() or not Path(given).exists()
    except OSError as error:
        raise StudyError(
            f"model: {given[:80]!r} is no path ({error.strerror}); give one of a file"
        ) from None
    return folder / given if is_there else Path(given)


def _fetched(name: str, revision: str, *files: str) -> Path:
    """The first of these files that a commit has, in the cache of the hub's library.

    A commit never changes, so what was fetched once needs no network. Raises StudyError.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError

    pin = f"model.hub {name} at {revision[:12]}"
    for local, absent in ((True, LocalEntryNotFoundError), (False, RemoteEntryNotFoundError)):
        if not local and (fault := hub_fault()) is not None:
            raise StudyError(
                f"{pin}: {fault}; fetch it once where there is a network, set HTTPS_PROXY if the "
                "site has a proxy, or give model.config and model.weights as files"
            )
        for file in files:
            try:
                return Path(hf_hub_download(name, file, revision=revision, local_files_only=local))
            except absent:
                continue
            except Exception as error:  # of libraries below the hub's too
                raise StudyError(
                    f"{pin}: {file} cannot be fetched ({' '.join(str(error).split())[:200]}); "
                    "check name, commit and network"
                ) from None
    raise StudyError(f"{pin} has no {' or '.join(files)}; give a commit that has")


def hub_fault() -> str | None:
    """Reason why the hub cannot be reached, where its name leads nowhere, or None.

    The hub's library would try six times. Behind a proxy no name is looked up here.
    """
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        if not urllib.request.getproxies():
            socket.getaddrinfo(host, 443)
    except OSError as error:
        return f"the hub {host} cannot be reached from this machine ({error.strerror})"
    return None
