"""Seconds and memory of a training step: `predict(job, constants)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.cost import computation, memory, schedule
from pipeline.cost.communication import Network
from pipeline.cost.computation import Passes
from pipeline.cost.constants import Constants, device_of
from pipeline.cost.job import Job, Refused
from pipeline.cost.memory import GIBIBYTE
from pipeline.cost.sharding import Prices
from pipeline.cost.traffic import HALVES, Traffic

PARTS = ("computation", "communication", "bubble", "host", "optimiser")


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, or of a pass in it, by part, and the bytes of its largest rank.

    Communication is what computing does not hide.
    """

    computation: float = 0.0
    communication: float = 0.0
    bubble: float = 0.0
    host: float = 0.0
    optimiser: float = 0.0
    memory: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all parts."""
        return self.computation + self.communication + self.bubble + self.host + self.optimiser

    def scaled(self, by: float) -> Prediction:
        """The same with the seconds of every part times `by`."""
        return replace(self, **{part: by * getattr(self, part) for part in PARTS})

    @property
    def gibibytes(self) -> float:
        """Memory of the largest rank in GiB."""
        return self.memory / GIBIBYTE


class Model:
    """One job on its device and network with the constants of its framework.

    Raises Refused for hardware or a precision not known, and for more stages than are replayed.
    """

    def __init__(self, job: Job, constants: Constants) -> None:
        if job.pp * job.vpp > schedule.MOST_STAGES:
            raise Refused(
                f"{job.pp * job.vpp} stages are not modelled; of at most {schedule.MOST_STAGES} "
                "the passes are replayed"
            )
        self.job = job
        self.device = device_of(job, constants)
        self.profile = constants.profile(f"{job.framework} {job.note}")
        self.network = Network(job, self.device)
        self.layer = computation.layer(job, self.device, self.profile)
        self.head = computation.head(job, self.device, self.profile)
        in_layers = job.vocab * job.hidden / job.layer_parameters
        counts: Sequence[float] = job.counts or schedule.stages(
            job.layers, job.pp, in_layers, balance=self.profile["balances_head"] > 0
        )
        if len(counts) < job.pp * job.vpp:
            # Of each rank: its chunks share them.
            counts = [count / job.vpp for _ in range(job.vpp) for count in counts]
        self.layers = counts
        """Layers of each stage; a rank has every `pp`-th."""
        self.tensor = self.cut()
        self.zero = self.sharded()

    def cut(self) -> Passes:
        """Seconds of a layer's collectives over the tensor axis: one a block and pass."""
        job = self.job
        size = job.tokens * job.hidden * self.device.element
        one = self.network.all_reduce("tensor", size)
        if self.network.groups["tensor"].nodes > 1:
            one += 1e-6 * self.profile["tensor_hop_us"] * job.tp
        if "async tp" in job.note:
            one *= 0.35
        again = 2 * one if job.recompute == "full" else 0.0
        remade = self.profile["selective_products"] > 0
        if job.recompute == "selective" and job.flash and remade:
            # What was gathered is gathered again, half of an all-reduce each; sums are kept.
            again = one
        return Passes(2 * one, 2 * one + again)

    def sharded(self) -> Passes:
        """Seconds by which ZeRO 2 and 3 lengthen a layer's passes: what computing cannot hide."""
        job, profile = self.job, self.profile
        if job.zero < 2 or job.dp < 2:
            return Passes(0.0, 0.0)
        tensors = profile["gathered_tensors"]
        gather, reduce = self.exchanged(job.layer_parameters, tensors)
        gathers = 1.0 if job.zero == 3 else 0.0
        if gathers and job.recompute == "full":
            gathers += profile["gathers_again"]
        share = profile["sharded_overlap"]
        if 0 < profile["live_parameters"] <= job.hidden * job.ffn:
            # The largest matrix of a layer fills what may be gathered: none is gathered ahead.
            share = 0.0
        reduced_later = 0.0 if profile["reduce_waits"] > 0 else reduce
        back = gathers * gather + reduced_later
        # A collective over a list of tensors has the host cut, and copy, a piece of each rank.
        lists = 1e-6 * profile["list_us"] * job.shard * tensors
        return Passes(
            gather - share * min(gather, self.layer.forward + self.tensor.forward) + lists,
            back - share * min(back, self.layer.backward + self.tensor.backward)
            + (reduce - reduced_later) + (gathers + 1) * lists,
        )  # fmt: skip

    def exchanged(self, parameters: float, tensors: float = 1.0) -> tuple[float, float]:
        """Seconds in which ZeRO 2 and 3 gather parameters of a layer, and reduce their gradients.

        In each micro-batch, by a collective for each of so many `tensors`.
        """
        job = self.job
        if job.zero < 2 or job.dp < 2:
            return 0.0, 0.0
        size = parameters / job.tp * self.device.element
        gather = self.network.gather("shards", size, self.profile["sharded_card_share"], tensors)
        outer = self.network.all_reduce("replicas", size / job.shard)
        return gather, gather * self.profile["reduce_bytes"] / 2 + outer

    def passes(
        self, count: float, before: float | None, after: float | None
    ) -> tuple[Prediction, Prediction]:
        """The forward and the backward pass of a micro-batch through a stage of so many layers.

        `before` and `after`: seconds of a message from the neighbours, None where there is none.
        """
        job, profile = self.job, self.profile
        first, last = before is None, after is None
        forward = count * self.layer.forward + last * self.head.forward
        backward = count * self.layer.backward + last * self.head.backward
        parameters = memory.parameters_of(job, count, first, last)
        parameters /= job.shard if job.zero >= 2 else 1
        if job.accum > 1:
            # Gradients of a micro-batch are added to those of the step.
            backward += parameters * profile["accumulate_bytes"] / self.device.memory_rate
        if job.wide_weights(profile):
            # A narrow copy of each weight is made, and a wide gradient of the narrow one.
            cast = (4 + 2) * parameters / self.device.memory_rate
            forward += cast
            backward += cast
        sent = count * (self.tensor.forward + self.zero.forward)
        back = count * (self.tensor.backward + self.zero.backward)
        # Tables at the ends are gathered before the first layer, and reduced after its gradients:
        # nothing is left to hide it. A tied one is one table where both ends are on a rank.
        tables = 1 if first and last and job.tied else first + last
        gather, reduce = self.exchanged(tables * job.vocab * job.hidden)
        sent += gather
        back += reduce
        host = count * computation.host(job, profile) + 1e-6 * profile["host_micro_us"] / job.vpp
        sent += profile["sends_exposed"] * (before or 0.0)
        back += profile["sends_exposed"] * (after or 0.0)
        if job.tp > 1 and job.crosses[1]:
            # The host waits for sends between nodes while rings of the tensor axis wait for it.
            host += 1e-6 * job.tp * count * profile["sends_layer_us"]
        busy = forward + backward + sent + back
        waiting = max(0.0, host / busy - 1)
        return (
            Prediction(forward, sent, host=waiting * (forward + sent)),
            Prediction(backward, back, host=waiting * (backward + back)),
        )

    def gradients(self, parameters: float, backward: float) -> float:
        """Seconds of what is reduced once a step and the backward pass does not hide."""
        job, profile = self.job, self.profile
        wide = 4.0 if self.device.element == 4 or job.wide_weights(profile) else 2.0
        if "bf16" in job.precision:
            # Some sum bf16 gradients in fp32 and send them so.
            wide = max(wide, profile["reduce_bytes"])
        table = job.vocab * job.hidden / job.tp
        # First and last stage add up what they have of a tied table.
        between_ends = self.network.all_reduce("ends", table * wide) if job.tied else 0.0
        if job.dp < 2 or job.zero >= 2:
            return between_ends
        whole = self.network.all_reduce("data", parameters * wide)
        exposed = whole
        overlap = profile["overlap"] * (profile["states_overlap"] if job.zero else 1)
        if overlap > 0:
            buckets = parameters * wide / (1e6 * profile["bucket_mb"])
            # The embedding's gradient is the last one.
            last = min(1.0, table / parameters)
            exposed = schedule.exposed(whole, overlap * backward, buckets, last)
        if job.zero == 1:
            exposed += self.network.gather("shards", parameters * self.device.element)
            if self.network.groups["shards"].nodes > 1:
                exposed += 1e-6 * profile["shard_us"] * job.shard
        return exposed + between_ends

    def exposed(self, sent: Sequence[Traffic]) -> float:
        """Seconds of a strategy's own traffic in a step that no backward pass hides.

        Of reduce-scatters and all-gathers the former are beside that pass, as all-reduces may be.
        """
        whole = [self.network.seconds(one) for one in sent]
        parts = [0.5 if one.kind == HALVES else float(one.overlap) for one in sent]
        beside = sum(part * seconds for part, seconds in zip(parts, whole, strict=True))
        share = self.profile["overlap"] * (self.profile["states_overlap"] if self.job.zero else 1)
        hideable = share * self.layers[0] * self.layer.backward
        buckets = sum(one.messages for one, part in zip(sent, parts, strict=True) if part)
        return sum(whole) - beside + schedule.exposed(beside, hideable, buckets)

    def predict(self) -> Prediction:
        """The step: micro-batches through the stages, gradients, optimiser."""
        job, last = self.job, len(self.layers) - 1
        whole = 1.0 * job.tokens * job.hidden * self.device.element
        scattered = job.seq_parallel or self.profile["scatters_sends"] > 0
        sends = self.network.sends(whole / job.tp if scattered else whole)
        if scattered and not job.seq_parallel:
            # Each rank sends its part, and those that receive gather the whole.
            gather = self.network.gather("tensor", whole)
            sends = [one + gather for one in sends]
        between = (sends * job.vpp)[:last]
        kinds = list(zip(self.layers, [None, *between], [*between, None], strict=True))
        known = {kind: self.passes(*kind) for kind in dict.fromkeys(kinds)}
        stages = [known[kind] for kind in kinds]
        ranks = [sum(stages[rank :: job.pp], ()) for rank in range(job.pp)]
        slowest = max(ranks, key=lambda passes: sum(one.seconds for one in passes))
        computing, communicating, waiting = (
            job.accum * sum(getattr(one, part) for one in slowest)
            for part in ("computation", "communication", "host")
        )
        bubble = 0.0
        if job.pp > 1:
            forward, backward = (
                [one.seconds for one in each] for each in zip(*stages, strict=True)
            )
            whole = schedule.pipelined(job.order, job.pp, forward, backward, job.accum)
            bubble = max(0.0, whole - computing - communicating - waiting)
        # Layers of the ranks at both ends, of which one holds most.
        first_rank, last_rank = (sum(self.layers[rank :: job.pp]) for rank in (0, job.pp - 1))

        def held(of: Job) -> float:
            return max(
                memory.parameters_of(of, first_rank, True, job.pp == 1),
                memory.parameters_of(of, last_rank, job.pp == 1, True),
            )

        parameters = held(job)
        # Under ZeRO each of the data ranks updates as many, of experts too.
        updated = held(replace(job, ep=1)) / job.shard if job.zero >= 1 else parameters
        update = computation.optimiser(job, updated, self.device, self.profile)
        if self.profile["host_runs_ahead"] > 0:
            # The device is still busy with an update while the host is ahead in the next passes.
            waiting = max(0.0, waiting - update)
        host_us = self.profile["host_step_us"] + first_rank * self.profile["host_update_us"]
        step = Prediction(
            computation=computing,
            communication=communicating
            + self.gradients(parameters, first_rank * self.layer.backward),
            bubble=bubble,
            host=waiting + 1e-6 * host_us,
            optimiser=update,
            memory=max(
                sum(memory.parts(job, self.profile, *end, self.device.element).values())
                for end in ((first_rank, 0), (last_rank, job.pp - 1))
            ),
        )
        return step.scaled(1 / job.accum) if job.per_micro else step


def predict(job: Job, constants: Constants, sent: Sequence[Traffic] = ()) -> Prediction:
    """Seconds and memory of a step; raises Refused as `Model` does.

    `sent`: what a rank sends in it, where the strategy says that and the model has no such axis.
    """
    model = Model(job, constants)
    step = model.predict()
    return replace(step, communication=model.exposed(sent)) if sent else step


def on_gpus(job: Job, constants: Constants, parameters: int) -> tuple[Prediction, Prices]:
    """The step of `job` with all operators whole, and what cutting them over its tensor axis costs.

    Gradients are reduced after the backward pass, by one all-reduce over the data axis.
    """
    model = Model(replace(job, tp=1), constants)
    device = model.device
    network = Network(job, device)
    reduced = network.all_reduce("data", 4.0 * parameters)
    whole = replace(model.predict(), communication=reduced)
    element, efficiency = device.element, model.profile["efficiency"]
    return whole, Prices(
        ranks=job.tp,
        product=lambda *sizes: 3 * computation.product(device, *sizes) / efficiency,
        all_reduce=lambda numbers: network.all_reduce("tensor", element * numbers),
        gather=lambda numbers: network.gather("tensor", element * numbers),
        pieces=round(job.accum),
        a_parameter=(whole.communication + whole.optimiser) / parameters,
    )
