"""Rules of contradiction: what a record may not say that fits the schemas, file by file.

Each rule yields a line on every contradiction, which begins with the file: first those about
run.json, what was executed against the spec and itself, then those about steps.jsonl, its lines
against the spec, run.json and one another. Fields that older records lack are not missed. What is
in a file by itself, such as a number that cannot be, the schemas and `pipeline.documents` refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline import models
from pipeline.documents import Unfit, check_plain
from pipeline.errors import StudyError, without_fix
from pipeline.study.profiling import COMMUNICATION, IN_STEP

if TYPE_CHECKING:
    from pipeline.records import RunRecord, Step

Rule = Callable[["RunRecord"], Iterator[str]]

PHASES_TOLERANCE = 1e-2
"""Relative: on a GPU the parts are timed by its own clock, the step by that of the host."""


def texts(record: RunRecord) -> Iterator[str]:
    """Every text but the reason of a failure, which quotes a log, can be shown in every format."""
    text = json.dumps({**record.run, "reason": None})  # as it is written: a tuple is a list
    try:
        check_plain(json.loads(text), printable=True)
    except Unfit as fault:
        yield f"run.json {str(fault).rpartition('; ')[0]}"


def differing(*pairs: tuple[str, Any, Any]) -> Iterator[str]:
    """A line on each value of run.json that is not the spec's: place, value, and what is asked."""
    for place, had, asked in pairs:
        if had != asked:
            yield f"run.json at $.{place}: {had!r}, the spec says {asked!r}"


def spec(record: RunRecord) -> Iterator[str]:
    """The spec holds together, and its hash and id are those of the record."""
    run = record.run
    try:
        asked = record.spec
    except StudyError as error:
        yield f"run.json at $.spec: {without_fix(error)}"
        return
    layout, work = run["execution"]["layout"], asked.workload
    parts = layout["data_parallel"] * layout.get("devices_per_process", 1)
    if work.global_batch % (pieces := parts * work.accumulation_steps):
        yield (
            f"run.json at $.spec: {pieces} micro-batches of a step do not divide global_batch "
            f"{work.global_batch}"
        )
    if run["spec_sha256"] != asked.sha256() or run["run_id"] != asked.run_id:
        yield (
            f"run.json at $.spec: does not hash to spec_sha256 {run['spec_sha256'][:12]}... and "
            f"run_id {run['run_id']}; the file was edited"
        )


def dates(record: RunRecord) -> Iterator[str]:
    """Start and end are dates of the calendar, in this order."""
    ends = []
    for name in ("started_at", "ended_at"):
        try:
            ends.append(datetime.fromisoformat(record.run[name]))
        except ValueError:
            yield f"run.json at $.{name}: {record.run[name]} is no date"
            return
    if ends[1] < ends[0]:
        order = f"{record.run['ended_at']} is before started_at {record.run['started_at']}"
        yield f"run.json at $.ended_at: {order}"


def world(record: RunRecord) -> Iterator[str]:
    """The execution has the spec's size, backend, threads and precision."""
    execution, asked = record.run["execution"], record.spec.world
    yield from differing(
        ("execution.world_size", execution["world_size"], asked.size),
        ("execution.backend", execution["backend"], asked.backend),
    )
    if (threads := asked.threads_per_rank) is not None:
        yield from differing(("execution.threads_per_rank", execution["threads_per_rank"], threads))
    if (had := record.run["precision"]) is not None:
        yield from differing(("precision.name", had["name"], record.spec.precision))


def precision(record: RunRecord) -> Iterator[str]:
    """Library, types, masters and loss scale are such as the named precision has."""
    about = record.run["precision"]
    name, dtype = about["name"], about["compute_dtype"]
    has_masters = name.endswith(("_o2", "_masters", "_reduced"))
    wrong = {
        "library": (about["library"] == "apex") != name.startswith("apex_"),
        "compute_dtype": (dtype == "float32") != (name == "fp32"),
        "master_weights": about["master_weights"] and not has_masters,
        "loss_scaling": about["loss_scaling"] and dtype != "float16",
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            yield f"run.json at $.precision.{key}: {json.dumps(about[key])}, which {name} has not"


def model(record: RunRecord) -> Iterator[str]:
    """Parameters and FLOPs are those of the spec's model."""
    asked = record.spec.model
    expected = {
        "num_parameters": models.num_parameters(asked),
        "flops_per_token": models.flops_per_token(asked),
    }
    for key, value in expected.items():
        had = record.run["model"][key]
        # Another version may count what this one leaves out, such as the last layer norm.
        if not math.isclose(had, value, rel_tol=1e-2):
            yield f"run.json at $.model.{key}: {had}, the spec's model has {value}"


def network(record: RunRecord) -> Iterator[str]:
    """The network is the spec's or says why not, and what only emulated nodes have is theirs."""
    execution, asked = record.run["execution"], record.spec.world
    had, why = execution["network"], execution.get("network_reason")
    emulation = execution.get("emulation")
    place = f"run.json at $.execution.network: {had}"
    if had != asked.network and (had, asked.network) != ("loopback", "emulated"):
        yield f"{place}, the spec says {asked.network}"
    if (had != asked.network) != (why is not None):
        reason = "without a" if why is None else "with a"
        yield f"{place} where the spec says {asked.network}, {reason} network_reason"
    if (had == "emulated") != (emulation is not None):
        yield f"{place}, with {'no' if emulation is None else 'an'} emulation beside it"
    elif emulation is None:
        if any("tcp" in rank for rank in record.run["ranks"]):
            yield f"run.json at $.ranks: counters of TCP, which no rank on the {had} network has"
    else:
        several = asked.nodes if asked.nodes > 1 and "disturbed_by" not in emulation else 0
        at = "execution.emulation"
        yield from differing(
            (f"{at}.cores_per_node", emulation["cores_per_node"], asked.cores_per_node),
            (f"{at}.link", emulation["link"], asked.link.to_dict() if asked.link else {}),
            (f"{at}.measured_cores", len(emulation["measured_cores"]), asked.nodes),
            (f"{at}.measured_mbits", len(emulation["measured_mbits"]), several),
        )


def ranks(record: RunRecord) -> Iterator[str]:
    """Check rank ids, device, placement and host count."""
    asked, execution = record.spec.world, record.run["execution"]
    layout, numbers = execution["layout"], [rank["rank"] for rank in record.run["ranks"]]
    count = layout.get("num_processes", asked.size)
    if numbers != list(range(count)):
        some = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "") or "none"
        yield f"run.json at $.ranks: ranks {some}, the layout has 0 to {count - 1} once"
    if count * layout.get("devices_per_process", 1) != asked.size:
        yield f"run.json at $.execution.layout: not the {asked.size} devices of the spec"
    if asked.size % layout["data_parallel"]:
        part = f"{layout['data_parallel']}, which is no part of {asked.size} devices"
        yield f"run.json at $.execution.layout.data_parallel: {part}"
    per_node = layout.get("processes_per_node", asked.ranks_per_node)
    for rank in record.run["ranks"]:
        place = f"run.json at $.ranks: rank {rank['rank']} on"
        if rank["device"].partition(":")[0] != asked.device:
            yield f"{place} device {rank['device']!r}, the spec says {asked.device}"
        if rank["node"] != rank["rank"] // per_node or rank["node"] >= asked.nodes:
            yield f"{place} node {rank['node']}, with {per_node} on each of {asked.nodes} nodes"
    hosts = execution.get("num_hosts", asked.num_machines)
    yield from differing(("execution.num_hosts", hosts, asked.num_machines))


def utilisation(record: RunRecord) -> Iterator[str]:
    """A GPU is busy at most all the time, a process with at most the cores of its machine."""
    alone = record.spec.world.num_machines == 1
    dilation = record.run["execution"].get("emulation", {}).get("dilation", 1)
    for rank in record.run["ranks"]:
        most = 1.0
        if record.spec.world.device == "cpu":
            machine = rank.get("environment") or (record.run["hardware"] if alone else {})
            # In dilated time what a node's threads do while its rank waits counts in full. Earlier
            # records count CPU time in ticks of 10 ms, few in a short run.
            most = 1.1 * machine.get("num_cores", math.inf) * dilation + 0.5
        if (busy := rank["mean_utilisation"]) is not None and busy > most:
            place = f"run.json at $.ranks: rank {rank['rank']}"
            yield f"{place} has a mean_utilisation of {busy}, over its device"


def memory(record: RunRecord) -> Iterator[str]:
    """Ranks on processors take no more memory than their machine has, and hold the weights."""
    if record.spec.world.device != "cpu":
        return
    # Of every precision the narrowest type of a weight has two bytes.
    least = 2 * models.num_parameters(record.spec.model)
    peaks = {rank["rank"]: rank["peak_memory_bytes"] for rank in record.run["ranks"]}
    place = "run.json at $.ranks:"
    if (total := sum(peaks.values())) < least:
        yield f"{place} a peak_memory_bytes of {total} together, the weights alone are {least}"
    most = record.run["hardware"]["memory_bytes"]
    for rank, peak in peaks.items() if record.spec.world.num_machines == 1 else ():
        if peak > most:
            has = f"rank {rank} has a peak_memory_bytes of {peak}"
            yield f"{place} {has}, over the {most} of its machine"


def sent(record: RunRecord) -> Iterator[str]:
    """Bytes that a rank sent are counted in profiled runs alone, along axes of the layout.

    No more steps are counted than are timed, and every group has several of the ranks.
    """
    work, size = record.spec.workload, len(record.run["ranks"])
    for rank in record.run["ranks"]:
        if "sent" not in rank:
            continue
        place, about = f"run.json at $.ranks[{rank['rank']}].sent", rank["sent"]
        if not record.spec.profile:
            yield f"{place}: counted, but the run is none to profile"
        if not about["differing_steps"] < about["steps"] <= work.steps - work.first_timed():
            yield f"{place}: {about['steps']} steps counted, {about['differing_steps']} differing"
        if any(each["ranks"] > size for each in about["collectives"]):
            yield f"{place}: a collective of more than {size} ranks"


def environments(record: RunRecord) -> Iterator[str]:
    """Every rank says where it was or none does, on as many hosts as the record counts."""
    ranks = record.run["ranks"]
    hosts = [rank["environment"]["host"] for rank in ranks if "environment" in rank]
    if len(hosts) not in (0, len(ranks)):
        yield f"run.json at $.ranks: {len(hosts)} of {len(ranks)} ranks have an environment"
    count = len({*hosts})
    counted = record.run["execution"].get("num_hosts", count)
    if hosts and counted != count:
        yield f"run.json at $.ranks: {count} hosts, num_hosts says {counted}"


def steps_hash(record: RunRecord) -> Iterator[str]:
    """run.json names the steps.jsonl that it was written with; older records do not."""
    expected = record.run.get("steps_sha256")
    if expected not in (None, record.steps_sha256):
        yield (
            f"steps.jsonl does not hash to the steps_sha256 {expected[:12]}... of run.json; one of "
            "the two was edited"
        )


def steps_of_the_spec(record: RunRecord) -> Iterator[str]:
    """Every step line has the tokens and the learning rate of its step, and a rank of the world.

    What warms up is never timed. The steps of a rank stand in their order, each once.
    """
    asked, last = record.spec, dict[int, int]()
    work, size = asked.workload, asked.world.size
    for step in record.steps:
        rate, tokens = asked.rate(step.step), asked.at(step.step)[1].global_batch_tokens
        if step.step >= work.steps or step.rank >= size:
            yield f"{_of(step)}: the spec has {work.steps} steps on {size} ranks"
        before = last.get(step.rank, -1)
        if step.step == before:
            yield f"{_of(step)} stands twice: lines are not {work.steps} steps x {size} ranks"
        if step.step < before:
            yield f"{_of(step)} comes after step {before}; steps of a rank stand in their order"
        if step.tokens != tokens:
            yield f"{_of(step)}: {step.tokens} tokens, the spec says {tokens}"
        # The rate is arithmetic on the spec.
        if not math.isclose(step.learning_rate, rate, rel_tol=1e-9):
            yield f"{_of(step)}: learning rate {step.learning_rate}, the spec says {rate}"
        if step.timed and step.step < work.first_timed():
            yield f"{_of(step)} is timed, the spec leaves {work.first_timed()} steps untimed"
        last[step.rank] = step.step


def grid(record: RunRecord) -> Iterator[str]:
    """Every step of every rank has its line."""
    count, work = len(record.run["ranks"]), record.spec.workload
    seen = {(step.step, step.rank) for step in record.steps}
    if seen != {(step, rank) for step in range(work.steps) for rank in range(count)}:
        yield f"steps.jsonl: {len(record.steps)} lines are not {work.steps} steps x {count} ranks"


def timed(record: RunRecord) -> Iterator[str]:
    """Steps are timed from the end of the warm-up on, which a run that resumed makes anew."""
    work, done = record.spec.workload, record.run["execution"].get("resumed_from_step", 0)
    if done >= work.steps:
        yield f"run.json at $.execution.resumed_from_step: {done} of {work.steps} steps"
    first = work.first_timed(done)
    for step in record.steps:
        # When the steps before were timed, the attempts knew that are gone.
        if step.step >= done and step.timed != (step.step >= first):
            kind = "timed" if step.timed else "not timed"
            yield f"{_of(step)} is {kind}; steps are timed from step {first} on"


def same_on_all_ranks(record: RunRecord) -> Iterator[str]:
    """Loss and gradient norm are of the global batch, so every rank has those of rank 0.

    An all-reduce gives every rank the same bits.
    """
    root = {step.step: step for step in record.steps if step.rank == 0}
    for step in record.steps:
        for name in ("loss", "grad_norm"):
            own, first = getattr(step, name), getattr(root[step.step], name)
            known = own is not None and first is not None
            if not (math.isclose(own, first, rel_tol=1e-5) if known else own is first):
                yield f"{_of(step)}: {name} {own}, that of rank 0 is {first}"


def wall_time(record: RunRecord) -> Iterator[str]:
    """No rank's steps took longer than the run; those before a resume were made earlier."""
    execution = record.run["execution"]
    done, spent = execution.get("resumed_from_step", 0), dict[int, float]()
    dilation = execution.get("emulation", {}).get("dilation", 1)
    for step in record.steps:
        if step.step >= done:
            spent[step.rank] = spent.get(step.rank, 0.0) + step.seconds * dilation
    ends = (datetime.fromisoformat(record.run[name]) for name in ("ended_at", "started_at"))
    wall = (next(ends) - next(ends)).total_seconds()
    longest = max(spent.values(), default=0.0)
    # Start and end are whole seconds, and a machine's clock may be set by some tenths of one.
    if longest > wall + 2.0:
        took = f"the run took {wall:g} s, the steps of a rank {longest:.4g} s"
        yield f"run.json at $.ended_at: {took}"


def phases(record: RunRecord) -> Iterator[str]:
    """Every step of a profiled run has phases that add up to it, and none of a timed run."""
    profile = record.spec.profile
    for step in record.steps:
        if (step.phases is not None) != profile:
            has = "no phases, but the run is a profiled one"
            yield f"{_of(step)} has {has if profile else 'phases, but the run is none to profile'}"
        total = sum(step.phases[name] for name in IN_STEP) if step.phases else step.seconds
        if not math.isclose(total, step.seconds, rel_tol=PHASES_TOLERANCE):
            yield f"{_of(step)}: its phases are {total} s together, the step is {step.seconds} s"
        passes = sum(seconds for *_, seconds in step.passes or ())
        if passes > sum((step.phases or {}).values()) * (1 + PHASES_TOLERANCE):
            yield (
                f"{_of(step)}: its passes are {passes} s together, more than its phases, or it has "
                "passes without phases"
            )


def communication(record: RunRecord) -> Iterator[str]:
    """A profiled run whose ranks sent bytes in its timed steps shows communication in them.

    Exactly none is no finding: the strategy's collectives ran where no phase was marked.
    """
    counted = [each for rank in record.run["ranks"] if "sent" in rank
               for each in rank["sent"]["collectives"]]  # fmt: skip
    sent = sum(each["wire_bytes"] or 0 for each in counted)
    seen = sum(step.phases[COMMUNICATION] for step in record.steps if step.timed and step.phases)
    if sent and not seen:
        yield (
            f"steps.jsonl: 0 s of communication in the timed steps, in each of which the ranks of "
            f"strategy {record.spec.strategy} sent {sent:,.0f} bytes; run its collectives inside "
            "phases.during(COMMUNICATION)"
        )


def cpu_seconds(record: RunRecord) -> Iterator[str]:
    """No step or phase is shorter than the CPU seconds of one thread that it took.

    On emulated nodes that is what the dilation is held to; elsewhere a machine may count badly.
    """
    is_emulated = "emulation" in record.run["execution"]
    # The CPU seconds of a step or phase are read just beside its ends, not at them.
    factor, least = (1.02, 3e-4) if is_emulated else (2.0, 0.1)
    for step in record.steps:
        spent = {"step": (step.seconds, step.cpu_seconds)}
        if step.phases and step.cpu_phases:
            spent |= {name: (step.phases[name], cpu) for name, cpu in step.cpu_phases.items()}
        for name, (seconds, cpu) in spent.items():
            if cpu is not None and cpu > seconds * factor + least:
                clock = "an emulated node" if is_emulated else "the clock"
                took = f"took {cpu} CPU seconds of one thread in {seconds} s of {clock}"
                yield f"{_of(step)}: the {name} {took}"


def _of(step: Step) -> str:
    return f"steps.jsonl: step {step.step} of rank {step.rank}"


ALWAYS: tuple[Rule, ...] = (texts, spec, dates, world, steps_hash, steps_of_the_spec)
FINISHED: tuple[Rule, ...] = (
    precision, model, network, ranks, utilisation, memory, environments, sent,
    grid, timed, same_on_all_ranks, phases, communication, cpu_seconds, wall_time,
)  # fmt: skip
"""Of a run that ended `ok`; of another one there is what it left."""


def contradiction(record: RunRecord) -> str | None:
    """The line on the first contradiction in a record; None if there is none."""
    rules = (*ALWAYS, *(FINISHED if record.status == "ok" else ()))
    return next((line for rule in rules for line in rule(record)), None)
