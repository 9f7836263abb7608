from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline.corpus.manifest import Manifest

ROOT = Path(__file__).parents[3]


def test_the_stage_leaves_nothing_in_the_home_folder_and_imports_no_torch(
    tmp_path: Path, text_spec: dict[str, Any]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(text_spec))
    code = (
        "import sys; from pipeline.__main__ import main; status = main(sys.argv[1:]); "
        "sys.exit(status or 'torch' in sys.modules)"
    )
    arguments = ["tokens", "--spec", str(spec), "--out", str(tmp_path / "out"), "--num-proc", "2"]
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=variables | {"HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tokens: 120 documents, ")
    assert list(home.rglob("*")) == []
    assert Manifest.load(tmp_path / "out", verify=True).num_documents == 120
