"""Emulated nodes on Debian's kernel: netem, a user without rights, two nodes on one core."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.study.link import LinkSpec
from tests.system import debian_vm, in_debian_vm
from tests.system.test_emulated import run_of

pytestmark = pytest.mark.system

USER = "65534"
"""Debian's `nobody`: in no group, owner of nothing."""


@pytest.fixture(scope="module")
def said(small_tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All that the guest found, of one start."""
    reason = debian_vm.why_missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("vm")
    console = debian_vm.run(_script(small_tokens, folder / "run"), folder)
    lines = [line for line in console.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def _script(tokens: Path, out: Path) -> str:
    """All of it as a user without rights."""
    spec = run_of("dps", 2, LinkSpec("10mbit", 10))  # an emulated processor sends no faster
    spec = replace(spec, timeout_seconds=400, workload=replace(spec.workload, steps=3))
    out.mkdir()
    (out / "spec.json").write_text(spec.to_json())
    out.chmod(0o777)
    python = shlex.quote(sys.executable)
    ask = f"{python} -m tests.system.in_debian_vm"
    user = f"setpriv --reuid {USER} --regid {USER} --clear-groups env HOME=/run/user"
    # On one core, so that the two nodes share it and are paced.
    train = f"taskset --cpu-list 0 {python} -m pipeline train"
    train += f" --spec={out}/spec.json --tokens={tokens} --out={out}"
    return f"""
cd {shlex.quote(str(debian_vm.ROOT))}
mkdir -m 777 /run/user
chmod a+rx /root  # an interpreter may lie there
parents() {{
    path=$1; while [ "$path" != / ]; do chmod a+rx "$path"; path=$(dirname "$path"); done
}}
parents {out}; parents {tokens}; chmod -R a+rX {tokens}; parents "$PWD"
{user} {ask} namespaces || exit
{user} {train} >{out}/said 2>&1 || {{ tail -30 {out}/said; exit 1; }}
echo; tr -d '\\n' <{out}/run.json; echo
"""


def found(said: list[dict[str, Any]], name: str) -> list[Any]:
    return [line[name] for line in said if name in line]


def test_a_user_without_rights_gets_nodes_and_a_link_with_a_delay(said) -> None:
    (seen,) = found(said, "namespaces")
    assert seen["reason"] is None
    assert seen["answer"] == "there and back"
    assert seen["seconds"] >= 2 * in_debian_vm.DELAY_US / 1e6


def test_a_short_training_on_two_nodes_ends_well(said) -> None:
    (record,) = [line for line in said if "run_id" in line]
    assert record["status"] == "ok", record["reason"]
    assert record["execution"]["network"] == "emulated"
    assert record["execution"]["emulation"]["shares"] == "paced"
    assert record["execution"]["as_root"] is False
