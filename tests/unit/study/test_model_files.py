"""A study whose model lies in a file or on a hub: its content, its identity, what is refused."""

import hashlib
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.study.expansion import expand
from pipeline.study.load import RESOLVED, load_study
from pipeline.study.spec import RunSpec

CONFIG = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_embd": 64,
    "n_head": 4, "n_positions": 128, "vocab_size": 2000, "torch_dtype": "bfloat16",
}  # fmt: skip
COMMIT = "0123456789abcdef" * 2 + "01234567"
FILE = {"family": "transformers", "config": "config.json"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAMESTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def study(folder: Path, content: dict[str, Any] = CONFIG, /, **model: Any) -> Path:
    """A study file in a folder with a config.json and weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    save_file({"wte.weight": np.ones(3, np.float32)}, folder / "model.safetensors")
    own = {"extends": "smoke", "study": "own", "model": model or FILE}
    (folder / "own.yaml").write_text(yaml.safe_dump(own))
    return folder / "own.yaml"


def first(file: Path) -> RunSpec:
    return expand(load_study(file))[0]


def test_a_file_gives_class_sizes_and_the_rest(here: Path) -> None:
    model = first(study(here / "a", **FILE, context=32, weights=".")).model
    assert (model.architecture, model.num_layers, model.width) == ("GPT2LMHeadModel", 2, 64)
    assert (model.num_heads, model.context, model.vocab_size) == (4, 32, 2000)
    assert model.config == {"model_type": "gpt2", "max_position_embeddings": 128}
    text = (here / "a/config.json").read_bytes()
    assert model.config_sha256 == hashlib.sha256(text).hexdigest()
    assert model.weights == "a"
    file = (here / "a/model.safetensors").read_bytes()
    assert model.weights_sha256 == hashlib.sha256(file).hexdigest()


def test_content_identifies_a_training_and_its_place_does_not(here: Path) -> None:
    given: dict[str, Any] = {**FILE, "weights": "model.safetensors"}
    one, two = (first(study(here / name, **given)) for name in "ab")
    assert one.model.weights != two.model.weights and one.sha256() != two.sha256()
    assert one.identity() == two.identity()
    assert RunSpec.from_dict(one.to_dict()) == one
    other = first(study(here / "c", CONFIG | {"layer_norm_epsilon": 0.1}, **given))
    save_file({"wte.weight": np.zeros(3, np.float32)}, here / "b/model.safetensors")
    assert len({one.identity(), other.identity(), first(here / "b/own.yaml").identity()}) == 3


def test_a_study_in_full_needs_neither_file(here: Path) -> None:
    """As the workflow writes it, and an archive holds it."""
    whole = load_study(file := study(here / "a", **FILE, weights="."))
    (full := here / RESOLVED).write_text(json.dumps(whole.to_dict()))
    expected = expand(whole)
    for path in (here / "a/config.json", here / "a/model.safetensors", file):
        path.unlink()
    assert expand(load_study(full)) == expected


def test_a_study_that_extends_one_with_files_takes_them_over_or_drops_them(here: Path) -> None:
    base = study(here / "a", **FILE, weights=".")
    own = here / "b.yaml"

    def model(**changes: Any) -> dict[str, Any]:
        own.write_text(yaml.safe_dump({"extends": "a/own.yaml", "study": "b", "model": changes}))
        return first(own).to_dict()["model"]

    whole = first(base).to_dict()["model"]
    assert model(context=64) == whole | {"context": 64}
    drawn = {name: value for name, value in whole.items() if not name.startswith("weights")}
    assert model(weights=None) == drawn
    assert "config_sha256" not in model(config={}, weights=None)


@pytest.mark.parametrize(
    ("config", "model", "said"),
    [
        ({"auto_map": {"AutoModel": "x.Y"}}, {}, "auto_map names code of the hub, and none is run"),
        ({"quantization_config": {"bits": 4}}, {}, "quantization_config is of quantised weights"),
        ({}, {"trust_remote_code": True}, "trust_remote_code asks for code of the hub"),
        ({"architectures": None}, {}, "names no class in architectures.*state model.architecture"),
        ({"n_embd": None}, {}, "has no hidden_size; state model.width"),
        ({"model_type": None}, {}, "has no model_type"),
        ({}, {"context": 129}, "context 129 is over the 128 positions"),
        ({}, {"hub": "a/b", "revision": "main"}, "'main' is no commit, and a branch or tag may"),
        ({}, {"hub": "a/b", "revision": COMMIT}, "model.config is another; give one"),
        ({}, {"weights": True}, "True is no path.* true beside model.hub"),
        ({}, {"weights": "none.safetensors"}, "none.safetensors is no file of safetensors"),
        ({}, {"weights": "pytorch_model.bin"}, "pytorch_model.bin is a pickle, which runs code"),
        ({}, {"weights": "pickled"}, "pickled/pytorch_model.bin is a pickle"),
        ({}, {"weights": "away.index.json"}, "has no weight_map to files beside it"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(here: Path, config, model, said) -> None:
    (here / "pickled").mkdir()
    (here / "pickled/pytorch_model.bin").touch()
    (here / "away.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
    content = {key: value for key, value in (CONFIG | config).items() if value is not None}
    with pytest.raises(StudyError, match=said) as refused:
        strategies.check(expand(load_study(study(here / "a", content, **FILE | model))))
    assert "\n" not in str(refused.value) and ";" in str(refused.value)


class Hub(BaseHTTPRequestHandler):
    """Serves files of one commit as the hub does, and notes which are asked for."""

    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        name = self.path.rpartition("/")[2]
        self.asked.extend([name] * ("/resolve/" in self.path))
        found = self.path.startswith(f"/owner/tiny/resolve/{COMMIT}/") and name in self.files
        self.send_response(200 if found else 404)
        self.send_header("X-Repo-Commit", COMMIT)
        if not found:
            self.send_header("X-Error-Code", "EntryNotFound")
        content = self.files[name] if found else b""
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_GET = do_HEAD

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub on this machine, which the library asks in place of its own."""
    study(here / "a")
    one, two = "model-1.safetensors", "model-2.safetensors"
    kind = type("Of", (Hub,), {"asked": [], "files": {
        "config.json": (here / "a/config.json").read_bytes(),
        "model.safetensors.index.json": json.dumps({"weight_map": {"a": one, "b": two}}).encode(),
        one: (here / "a/model.safetensors").read_bytes(), two: b"two", "pytorch_model.bin": b"",
    }})  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    constants = "huggingface_hub.constants"
    # As true as when the library was loaded, in this process maybe by a stage that is offline.
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(f"{constants}.ENDPOINT", place)
    template = f"{place}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(here / "hub"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", place)
    yield kind
    server.shutdown()
    server.server_close()


PINNED = {"family": "transformers", "hub": "owner/tiny", "revision": COMMIT}


def test_a_commit_of_the_hub_is_fetched_once_and_no_code_with_it(here, hub, monkeypatch) -> None:
    plain, own = first(study(here / "a")), first(study(here / "b", **PINNED))
    assert own.identity() == plain.identity()
    assert (own.model.hub, own.model.revision) == ("owner/tiny", COMMIT)
    assert {*hub.asked} == {"config.json"}
    begun = first(study(here / "b", **PINNED, weights=True))
    assert begun.model.weights is not None and Path(begun.model.weights).is_file()
    assert begun.identity() != plain.identity()
    assert "pytorch_model.bin" not in hub.asked
    hub.asked.clear()
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    assert first(here / "b/own.yaml") == begun, "what was fetched needs no network"
    assert hub.asked == []


def nowhere(*_: Any) -> None:
    raise OSError(-2, "Name or service not known")
