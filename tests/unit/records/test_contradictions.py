"""Records that contradict themselves: every rule with a table of what it refuses."""

import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pipeline.records import RunRecord, rules
from pipeline.records.rules import ALWAYS, FINISHED, Rule, contradiction
from pipeline.study.profiling import PHASES
from pipeline.study.spec import PhaseSpec
from tests.fake_records import EMULATED, make_record, rank_environment, spec_of

Edit = Callable[[RunRecord], RunRecord]


@cache
def made(kind: str) -> RunRecord:
    """A sound record on two ranks: `timed`, `profiled`, `emulated`, `phased` or `resumed`."""
    kinds: dict[str, Any] = {
        "emulated": {"cluster": EMULATED},
        "profiled": {"profile": {"steps": 4}},
    }
    spec = spec_of("dps-slow" if kind == "emulated" else "dps", **kinds.get(kind, {}))
    if kind == "phased":
        phases = (PhaseSpec(3, global_batch=64, context=64, warmup_steps=2),)
        spec = replace(spec, workload=replace(spec.workload, phases=phases))
    record = make_record(spec)
    run = copy.deepcopy(dict(record.run)) | {"steps_sha256": record.steps_sha256}
    steps = record.steps
    if kind == "resumed":
        run["execution"]["resumed_from_step"] = 10
        warm = {*range(5), *range(10, 15)}
        steps = [replace(step, timed=step.step not in warm) for step in steps]
        run["steps_sha256"] = RunRecord({}, steps).steps_sha256
    return RunRecord(run, steps)


def put(path: str, value: Any) -> Edit:
    """An edit of run.json: the value at a path such as `ranks.0.node`; DROP takes it away."""

    def edit(record: RunRecord) -> RunRecord:
        run = json.loads(json.dumps(record.run))
        *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = run
        for part in way:
            place = place[part]
        if value is DROP:
            del place[last]
        else:
            place[last] = value
        return RunRecord(run, record.steps)

    return edit


DROP = object()


def line(number: int, **changes: Any) -> Edit:
    """An edit of a line of steps.jsonl; run.json then has the hash of the edited lines."""

    def edit(record: RunRecord) -> RunRecord:
        steps = list(record.steps)
        steps[number] = replace(steps[number], **changes)
        return RunRecord({**record.run, "steps_sha256": RunRecord({}, steps).steps_sha256}, steps)

    return edit


def times(factor: float) -> Edit:
    def edit(record: RunRecord) -> RunRecord:
        return RunRecord(record.run, [replace(s, seconds=factor * s.seconds) for s in record.steps])

    return edit


def less_memory(record: RunRecord) -> RunRecord:
    return put("ranks.0.peak_memory_bytes", 1)(put("ranks.1.peak_memory_bytes", 1)(record))


def without_line(record: RunRecord) -> RunRecord:
    return RunRecord(record.run, record.steps[:-1])


def backwards(record: RunRecord) -> RunRecord:
    return RunRecord(record.run, record.steps[::-1])


def environment(*hosts: str | None) -> Edit:
    """The ranks say that they were on these hosts; None is a rank that says nothing."""

    def edit(record: RunRecord) -> RunRecord:
        for rank, host in enumerate(hosts):
            if host is not None:
                record = put(f"ranks.{rank}.environment", rank_environment(host))(record)
        return put("execution.num_hosts", 1)(record)

    return edit


def sent(ranks: int = 2, **more: int) -> dict[str, Any]:
    """What a rank sent in a step, over the four timed steps of the profiled run."""
    one = {"kind": "all_reduce", "axis": "data", "ranks": ranks, "count": 1}
    sizes = {"payload_bytes": 8, "wire_bytes": 8}
    return {"steps": 4, "differing_steps": 0, "collectives": [one | sizes], **more}


def unseen(record: RunRecord) -> RunRecord:
    """Bytes were sent, and what they took was counted to the rest of the step."""

    def unmarked(phases: dict[str, float]) -> dict[str, float]:
        rest = phases["rest"] + phases["communication"]
        return {**phases, "communication": 0.0, "rest": rest}

    steps = [replace(step, phases=unmarked(dict(step.phases or {}))) for step in record.steps]
    run = put("ranks.0.sent", sent())(record).run
    return RunRecord({**run, "steps_sha256": RunRecord({}, steps).steps_sha256}, steps)


CASES: list[tuple[Rule, str, Edit, str]] = [
    (rules.texts, "timed", put("versions.torch", "2\0"), r"\$.versions.torch: .*cannot be pr"),
    (rules.texts, "timed", put("hardware.gpus", ["\x1b[31m"]), r"\$.hardware.gpus\[0\]"),
    (rules.spec, "timed", put("spec.seed", 7), "does not hash to spec_sha256"),
    (rules.spec, "timed", put("spec.workload.global_batch", 15), r"\$.spec: .*divide"),
    (rules.dates, "timed", put("started_at", "2026-02-30T00:00:00+00:00"), "is no date"),
    (rules.dates, "timed", put("ended_at", "2026-01-02T03:00:00+00:00"), "is before started"),
    (rules.world, "timed", put("execution.world_size", 4), "world_size: 4, the spec says 2"),
    (rules.world, "timed", put("precision.name", "bf16"), "precision.name: 'bf16'"),
    (rules.precision, "timed", put("precision.library", "apex"), "precision.library"),
    (rules.precision, "timed", put("precision.compute_dtype", "float16"), "compute_dtype"),
    (rules.precision, "timed", put("precision.master_weights", True), "master_weights"),
    (rules.precision, "timed", put("precision.loss_scaling", True), "loss_scaling"),
    (rules.model, "timed", put("model.num_parameters", 1_000_000), "num_parameters"),
    (rules.ranks, "timed", put("ranks.1.device", "cuda:1"), "cuda:1"),
    (rules.network, "timed", put("execution.network", "real"), "real, the spec says loopback"),
    (rules.network, "timed", put("execution.network_reason", "no"), "with a network_reason"),
    (rules.network, "timed", put("execution.emulation", {}), "with an emulation beside it"),
    (rules.network, "timed", put("ranks.1.tcp", {}), "counters of TCP"),
    (rules.network, "emulated", put("execution.emulation", DROP), "with no emulation beside"),
    (rules.network, "emulated", put("execution.network", "loopback"), "without a network_re"),
    (rules.network, "emulated", put("execution.emulation.link.rate_mbits", 1), "link: .*says"),
    (rules.network, "emulated", put("execution.emulation.measured_mbits", []), "0, the spec"),
    (rules.ranks, "timed", put("ranks.1.rank", 0), "ranks 0, 0, the layout has 0 to 1 once"),
    (rules.ranks, "timed", put("ranks.1.node", 0), "rank 1 on node 0"),
    (rules.ranks, "timed", put("execution.layout.devices_per_process", 2), "not the 2 devices"),
    (rules.ranks, "timed", put("execution.layout.data_parallel", 3), "no part of 2 devices"),
    (rules.ranks, "timed", put("execution.num_hosts", 2), "num_hosts: 2, the spec says 1"),
    (rules.utilisation, "timed", put("ranks.0.mean_utilisation", 9.0), "utilisation of 9.0"),
    (rules.memory, "timed", put("ranks.0.peak_memory_bytes", 10**15), "of its machine"),
    (rules.memory, "timed", less_memory, "the weights alone are"),
    (rules.utilisation, "emulated", put("ranks.0.mean_utilisation", 9.0), "n of 9.0, over its"),
    (rules.environments, "timed", environment("a", None), "1 of 2 ranks have an environment"),
    (rules.environments, "timed", environment("a", "b"), "2 hosts, num_hosts says 1"),
    (rules.sent, "timed", put("ranks.0.sent", sent()), "counted, but the run is none to pro"),
    (rules.sent, "profiled", put("ranks.1.sent", sent(steps=5)), "5 steps counted, 0 differ"),
    (rules.sent, "profiled", put("ranks.1.sent", sent(3)), "more than 2 ranks"),
    (rules.steps_hash, "timed", times(1.01), "one of the two was edited"),
    (rules.steps_of_the_spec, "phased", line(3, tokens=2048), "says 4096"),
    (rules.steps_of_the_spec, "phased", line(13, tokens=4096), "says 2048"),
    (rules.steps_of_the_spec, "phased", line(4, timed=True), "leaves 8 steps untimed"),
    (rules.steps_of_the_spec, "timed", line(3, learning_rate=0.1), "learning rate 0.1, the"),
    (rules.steps_of_the_spec, "timed", line(3, timed=True), "is timed, the spec leaves 5"),
    (rules.steps_of_the_spec, "timed", line(3, rank=2), "the spec has 30 steps on 2 ranks"),
    (rules.steps_of_the_spec, "timed", line(3, rank=0), "step 1 of rank 0 stands twice"),
    (rules.steps_of_the_spec, "timed", backwards, "step 28 of rank 1 comes after step 29"),
    (rules.grid, "timed", without_line, "59 lines are not 30 steps x 2 ranks"),
    (rules.timed, "timed", line(-1, timed=False), "step 29 of rank 1 is not timed"),
    (rules.timed, "timed", put("execution.resumed_from_step", 10), "is timed; .* step 15 on"),
    (rules.timed, "timed", put("execution.resumed_from_step", 30), "30 of 30 steps"),
    (rules.timed, "resumed", put("execution.resumed_from_step", 9), "step 9 of rank 0 is ti"),
    (rules.same_on_all_ranks, "timed", line(3, loss=1.0), "step 1 of rank 1: loss 1.0, that"),
    (rules.same_on_all_ranks, "timed", line(3, loss=None), "loss None, that of rank 0 is"),
    (rules.wall_time, "timed", times(100), "the run took 30 s, the steps of a rank"),
    (rules.wall_time, "emulated", put("execution.emulation.dilation", 50), "the run took 30"),
    (rules.phases, "profiled", line(7, phases=None), "has no phases"),
    (rules.phases, "timed", line(7, phases=dict.fromkeys(PHASES, 0.0)), "none to profile"),
    (rules.phases, "profiled", line(7, seconds=9.0), "together, the step is 9.0 s"),
    (rules.communication, "profiled", unseen, r"sent 8 bytes; .* inside phases.during.COMM"),
    (rules.cpu_seconds, "emulated", line(7, cpu_seconds=9.0), "took 9.0 CPU seconds of one"),
    (rules.cpu_seconds, "timed", line(7, cpu_seconds=9.0), "took 9.0 CPU seconds of one"),
    (rules.cpu_seconds, "profiled", line(7, cpu_phases={"forward": 9.0}), "the forward took"),
]


@pytest.mark.parametrize(("rule", "kind", "edit", "message"), CASES)
def test_a_rule_refuses(rule: Rule, kind: str, edit: Edit, message: str) -> None:
    refusal = next(rule(edit(made(kind))), None)
    assert refusal is not None and re.search(message, refusal), refusal
    assert refusal.startswith(("run.json", "steps.jsonl")) and "\n" not in refusal
    assert contradiction(edit(made(kind))) is not None


def test_every_rule_has_its_cases() -> None:
    assert {rule for rule, *_ in CASES} == {*ALWAYS, *FINISHED}


SOUND: dict[str, tuple[str, Edit]] = {
    **{kind: (kind, lambda record: record)
       for kind in ("timed", "profiled", "emulated", "resumed", "phased")},
    "of earlier versions": ("timed", put("steps_sha256", DROP)),
    "with environments": ("timed", environment("a", "a")),
    "ranks that differ in the last bit": (
        "timed", lambda record: line(3, loss=math.nextafter(record.steps[3].loss or 0, 9))(record),
    ),
    "counted": ("profiled", put("ranks.0.sent", sent())),
    "a device without a figure": ("timed", put("ranks.0.mean_utilisation", None)),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_record_passes(name: str) -> None:
    kind, edit = SOUND[name]
    assert contradiction(edit(made(kind))) is None


def test_what_a_run_that_failed_left_is_checked_where_it_can_be() -> None:
    run = {**made("timed").run, "status": "failed", "reason": "killed", "ranks": []}
    cut = made("timed").steps[:7]
    failed = RunRecord(run | {"steps_sha256": RunRecord({}, cut).steps_sha256}, cut)
    assert contradiction(failed) is None
    assert "tokens" in str(contradiction(line(3, tokens=1)(failed)))
