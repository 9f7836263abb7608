"""Emulated nodes for real: every strategy, what the record says, and that nothing stays behind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.emulation.dilation import dilate
from pipeline.emulation.nodes import why_not
from pipeline.launch import preloaded
from pipeline.launch.emulated import yardstick
from pipeline.machine.facts import hardware
from pipeline.machine.inherited import SENT_AGAIN
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.link import LinkSpec
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec
from tests.fake_bench import make_yardstick
from tests.programs import ran, wait_until
from tests.system.stage import words_of

ROOT = Path(__file__).parents[2]
LINK = LinkSpec("200mbit", 200)
"""Every machine reaches it, also one that others use."""

REASON = why_not()

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("loaded"),
    pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}"),
]


ALONE = {preloaded.STAGES: "", preloaded.variable(1): ""}
"""Environment of a stage that loads for itself, without the processes of the fixture `loaded`."""

CELLS = ["sps", "dps", "horovod"]
LAYOUTS = ["zero1", "tensor", "zero-bubble", "annotated"]
WIDER = {"zero3": 4, "hybrid": 8}
"""Cells on more nodes than two."""


def run_of(cell: str, nodes: int, link: LinkSpec = LINK, ranks: int = 1) -> RunSpec:
    """A short run of a cell of `smoke` or `layouts`, on nodes and a link that it may not have."""
    name = "layouts" if cell in [*LAYOUTS, *WIDER] else "smoke"
    study = load_study(ROOT / f"workflow/config/{name}/study.yaml")
    model = replace(study.model, vocab_size=300, context=16)
    spec = next(run for run in expand(replace(study, model=model)) if run.cell == cell)
    work = replace(spec.workload, global_batch=8, steps=6, untimed_steps=2)
    world = replace(spec.world, nodes=nodes, ranks_per_node=ranks, link=link)
    world = replace(world, yardstick=None, dilated_for=None)
    return replace(spec, world=world, workload=work)


@pytest.fixture(scope="module")
def alone(small_tokens, tmp_path_factory) -> Callable[[RunSpec], list[dict[str, Any]]]:
    """Steps of the same work on a single device, trained once: tests/parity has the loopback's."""
    made: dict[str, list[dict[str, Any]]] = {}

    def steps(spec: RunSpec) -> list[dict[str, Any]]:
        world = replace(spec.world, network="loopback", link=None, cores_per_node=None)
        world = replace(world, nodes=1, ranks_per_node=1, threads_per_rank=1)
        one = replace(spec, cell="single", strategy="single", options={}, world=world)
        if one.identity() not in made:
            made[one.identity()] = train(one, small_tokens, tmp_path_factory.mktemp("single"))[1]
        return made[one.identity()]

    return steps


def assert_same_steps(steps: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Loss and norm of every rank, within what tests/parity allows against a single device."""
    for got in steps:
        for name in ("loss", "grad_norm"):
            assert got[name] == pytest.approx(expected[got["step"]][name], rel=1e-4)


def command(spec: RunSpec, tokens: Path, folder: Path) -> list[str]:
    return [sys.executable, "-m", "pipeline", *words_of(spec, tokens, folder)]


def train(
    spec: RunSpec, tokens: Path, folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    done = ran(command(spec, tokens, folder), cwd=ROOT, timeout=300)
    log = (folder / "log.txt").read_text() if (folder / "log.txt").is_file() else ""
    assert done.returncode == 0, done.stderr + log[-3000:]
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return json.loads((folder / "run.json").read_text()), steps, done.stderr


def left_behind() -> dict[str, Any]:
    """Bridges, cables and processes of emulated nodes, outside of any of them."""
    names = sorted(path.name for path in Path("/sys/class/net").iterdir())
    running = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pipeline.launch.emulated.build" in words:
            running.append(entry.name)
    return {"interfaces": names, "processes": running}


@pytest.mark.parametrize("cell", [*CELLS, *LAYOUTS])
def test_a_strategy_takes_the_steps_of_a_single_device(cell, alone, small_tokens, tmp_path) -> None:
    """Losses and gradient norms of two nodes, and what the record says of them.

    Other precisions, schedules and ZeRO stages take the same way over a node's cable.
    """
    spec = run_of(cell, 2)
    record, steps, said = train(replace(spec, profile=True), small_tokens, tmp_path / "emulated")
    assert (record["status"], record["reason"]) == ("ok", None), said
    assert_same_steps(steps, alone(spec))
    execution = record["execution"]
    assert (execution["network"], execution["launcher"]) == ("emulated", "fork")
    found = execution["emulation"]
    cores = len(os.sched_getaffinity(0))
    assert found["dilation"] == dilate(spec.world, cores)
    assert (found["shares"] == "own") == (cores >= 2)
    assert len(found["measured_mbits"]) == len(found["measured_cores"]) == 2
    # No node gets more than the study says, however little others leave it.
    assert max(found["measured_mbits"]) <= 1.2 * LINK.rate_mbits
    assert max(found["measured_cores"]) <= 1.1
    assert 0 < found["latency_us"] < 1000
    assert found["tcp"]["rto_min_ms"] == 200 * found["dilation"]
    assert found["tcp"]["quickack"] is True
    assert all("TCPTimeouts" in rank["tcp"] for rank in record["ranks"])
    # Horovod's negotiation is sent as well, and grows with the time that a step takes.
    for rank in [rank for rank in record["ranks"] if "horovod" not in cell]:
        assert_the_interface_agrees([rank])


def assert_the_interface_agrees(node: list[dict[str, Any]]) -> None:
    """What a node's cable carried is what its ranks count between nodes; and headers."""
    steps, across = node[0]["sent"]["steps"], axes_across(node)
    over = [c for rank in node for c in rank["sent"]["collectives"] if c["axis"] in across]
    calls = sum(each["count"] for each in over)
    counted = steps * sum(each["between_nodes_bytes"] for each in over)
    # The ranks of a node begin to count at slightly different times.
    carried = max(rank["sent"]["interface_bytes"] for rank in node)
    assert counted <= carried <= 1.25 * counted + steps * (20_000 + 2_000 * calls), node


def axes_across(node: list[dict[str, Any]]) -> set[str]:
    """The axes along which its ranks send to other nodes."""
    calls = [call for rank in node for call in rank["sent"]["collectives"]]
    return {call["axis"] for call in calls if call["between_nodes_bytes"]}


@pytest.mark.parametrize(("inside", "across"), [("tensor", "pipeline"), ("pipeline", "tensor")])
def test_one_axis_stays_inside_of_a_node_of_two_ranks(
    inside, across, alone, small_tokens, tmp_path
) -> None:
    """Its bytes go over the node's loopback, the other axis's over the cable."""
    spec = run_of("hybrid", 2, ranks=2)
    spec = replace(spec, options={**spec.options, "inside": inside})
    record, steps, said = train(replace(spec, profile=True), small_tokens, tmp_path / "emulated")
    assert (record["status"], record["reason"]) == ("ok", None), said
    assert_same_steps(steps, alone(spec))
    ranks = sorted(record["ranks"], key=lambda rank: rank["rank"])
    for node in (ranks[:2], ranks[2:]):
        assert axes_across(node) == {across}
        assert_the_interface_agrees(node)
        if inside == "pipeline":
            continue  # stages send less than the cable carries
        within = sum(
            each["wire_bytes"] * rank["sent"]["steps"]
            for rank in node
            for each in rank["sent"]["collectives"]
            if each["axis"] == "tensor"
        )
        assert within > max(rank["sent"]["interface_bytes"] for rank in node)


@pytest.mark.parametrize(("cell", "nodes"), WIDER.items())
def test_more_nodes_take_the_same_steps_and_send_what_is_counted(
    cell, nodes, alone, small_tokens, tmp_path
) -> None:
    spec = run_of(cell, nodes)
    record, steps, said = train(replace(spec, profile=True), small_tokens, tmp_path / "emulated")
    assert (record["status"], record["reason"]) == ("ok", None), said
    assert_same_steps(steps, alone(spec))
    cores = len(os.sched_getaffinity(0))
    assert record["execution"]["emulation"]["dilation"] == dilate(spec.world, cores)
    assert {step["rank"] for step in steps} == {*range(nodes)}
    for rank in record["ranks"]:
        assert_the_interface_agrees([rank])


def test_a_waiting_horovod_leaves_its_core_to_the_others(small_tokens, tmp_path) -> None:
    """Over a slow link it does nothing but wait; its own wait would keep the core busy."""
    spec = run_of("horovod", 2, link=LinkSpec("slow", 5))
    record, _, _ = train(spec, small_tokens, tmp_path)
    assert record["status"] == "ok", record["reason"]
    assert max(rank["mean_utilisation"] for rank in record["ranks"]) < 0.6


def test_without_tc_the_run_is_on_the_loopback_and_says_so(
    small_tokens, tmp_path, monkeypatch
) -> None:
    hidden = tmp_path / "bin"
    hidden.mkdir()
    script = "import sys\nfrom pipeline.emulation import nodes\nnodes.SYSTEM_PATH = ''\n"
    script += "from pipeline.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
    words = command(run_of("dps", 2), small_tokens, tmp_path / "out")
    done = ran(
        [sys.executable, "-c", script, *words[3:]],
        cwd=ROOT,
        env=os.environ | ALONE | {"PATH": str(hidden)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["status"] == "ok"
    assert record["execution"]["network"] == "loopback"
    assert "install iproute2" in record["execution"]["network_reason"]
    (line,) = [line for line in done.stderr.splitlines() if "no emulated network here" in line]
    assert "recorded on the loopback" in line


def test_after_a_kill_of_the_stage_nothing_is_left(small_tokens, tmp_path) -> None:
    """In the middle of training; other kills are in `test_killed.py`."""
    before = left_behind()
    spec = run_of("dps", 4)
    spec = replace(spec, workload=replace(spec.workload, steps=100_000))
    with (tmp_path / "said.txt").open("wb") as said:
        stage = subprocess.Popen(
            command(spec, small_tokens, tmp_path / "out"),
            cwd=ROOT,
            # In a job the scheduler starts a killed run again, not the stage.
            env=os.environ | ALONE | {SENT_AGAIN: "yes"},
            stdout=said,
            stderr=said,
        )
    try:
        steps = tmp_path / "out/ranks/rank0.steps"
        wait_until(lambda: steps.is_file() and steps.stat().st_size)
        during = left_behind()
        # It, the meeting place, the ranks, and what keeps each core awake.
        assert len(during["processes"]) == 1 + 1 + 4 + len(os.sched_getaffinity(0))
        # All network that the nodes have is their own.
        assert during["interfaces"] == before["interfaces"]
        stage.kill()
        wait_until(lambda: left_behind() == before)
    finally:
        stage.kill()
        stage.wait()


def test_by_a_yardstick_every_run_has_one_processor_speed(small_tokens, tmp_path) -> None:
    """A rank is paced by its forward passes, and its record says how fast the machine was."""
    spec = run_of("horovod", 2)
    spec = replace(spec, world=replace(spec.world, yardstick=True))
    file = tmp_path / "yardstick.json"
    found = yardstick_of(spec, 2.0e-3)
    file.write_text(json.dumps(found))
    folder = tmp_path / "run"
    started = [*command(spec, small_tokens, folder), f"--yardstick={file}"]
    subprocess.run(started, cwd=ROOT, check=True, capture_output=True, timeout=300)
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "ok", record["reason"]
    emulation = record["execution"]["emulation"]
    assert emulation["forward_seconds"] == 2.0e-3
    assert emulation["dilation"] == dilate(spec.world, emulation["cores"]) >= 2
    for rank in record["ranks"]:
        speed = rank["machine_speed"]
        assert 0 < speed["least"] <= speed["median"] <= speed["most"]
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert all(step["seconds"] >= step["cpu_seconds"] > 2.0e-3 for step in steps)


def yardstick_of(spec: RunSpec, forward_seconds: float) -> dict[str, Any]:
    """A yardstick of this machine with made up figures."""
    precision, sequences = yardstick.shape_of(resolve(spec))
    made = make_yardstick([forward_seconds] * 2)
    made["passes"][0] |= {"precision": precision, "sequences": sequences}
    about = {"hardware": hardware(), "model": asdict(spec.model)}
    return made | about | {"cores_per_node": spec.world.cores_per_node}
