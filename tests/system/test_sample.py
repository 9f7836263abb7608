"""The shipped records of the default study and of a GPU give the shipped results, without torch."""

import pytest

from tests.workflow.project import ROOT, make_project


@pytest.mark.parametrize("study", ["smoke", "one-gpu"])
def test_the_shipped_archive_is_rebuilt_to_the_byte(study, tmp_path_factory) -> None:
    project = make_project(tmp_path_factory.mktemp("sample"))
    for name in ("torch", "horovod"):
        (project.folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked')\n")
    done = project.make("paper", f"FROM={ROOT / f'docs/example/{study}.zip'}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "every one byte-identical to the archive" in done.stdout
    if study == "smoke":
        paper = project.folder / "results/from_archive/smoke/paper/paper.pdf"
        assert paper.read_bytes() == (ROOT / "docs/example/paper.pdf").read_bytes()
