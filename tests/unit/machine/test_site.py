"""The site file of a cluster: its example, what is refused, and the lines that begin a job."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import LaunchError
from pipeline.machine.site import Site, load_site

EXAMPLE = Path("workflow/site.example.yaml")


def written(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "site.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def test_the_example_is_what_counts_without_a_site_and_each_key_in_it_may_be_set(tmp_path) -> None:
    assert load_site(EXAMPLE) == Site()
    text = EXAMPLE.read_text()
    keys = re.compile(r"^( *)# ( *(?:- .*|[A-Za-z_]+:(?: .*)?))$", re.MULTILINE)
    whole = load_site(written(tmp_path, keys.sub(r"\1\2", text)))
    defaults = vars(Site())
    same = {name for name, value in vars(whole).items() if value == defaults[name]}
    assert same == {"gpus", "accounting", "runtime"}, "those that are no comments"
    assert "/workflow/site.yaml\n" in Path(".gitignore").read_text()


OTHER = {"container": {"runtime": "none"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (OTHER | {"partition": "gpu; rm"}, "$.partition"),
        (OTHER | {"account": 123}, "quote it"),
        ({"container": {"runtime": "none", "options": ["word"]}}, "$.container.options[0]"),
        (OTHER | {"environment": {"NCCL_IB_GID_INDEX": 3}}, "quote it"),
        (OTHER | {"environment": {"NCCL_DEBUG": "INFO"}}, "environment has NCCL_DEBUG"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, content, message) -> None:
    with pytest.raises(LaunchError, match=r"there is no .*; copy workflow/site.example.yaml to it"):
        load_site(tmp_path / "none.yaml")
    with pytest.raises(LaunchError) as error:
        load_site(written(tmp_path, content))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert "site.yaml" in str(error.value)
