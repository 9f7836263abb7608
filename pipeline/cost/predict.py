"""Seconds and memory of a training step: `predict(job, constants)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.cost import computation, memory, schedule
from pipeline.cost.communication import Network, RankGroup
from pipeline.cost.computation import Passes
from pipeline.cost.constants import Constants
from pipeline.cost.devices import Device, device_of
from pipeline.cost.job import Job
from pipeline.cost.memory import GIBIBYTE
from pipeline.cost.sharding import Prices

PARTS = ("computation", "communication", "bubble", "host", "optimiser")


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step by part, which add up, and the bytes of its largest rank."""

    computation: float
    communication: float
    bubble: float
    host: float
    optimiser: float
    memory: float

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.computation + self.communication + self.bubble + self.host + self.optimiser

    def scaled(self, by: float) -> Prediction:
        """The same with every part of the time times `by`."""
        return replace(self, **{part: by * getattr(self, part) for part in PARTS})

    @property
    def gibibytes(self) -> float:
        """Memory of the largest rank in GiB."""
        return self.memory / GIBIBYTE


@dataclass(frozen=True)
class Micro:
    """Seconds of one micro-batch on a stage: computing, exposed communication, waiting for host."""

    computing: float
    communicating: float
    waiting: float

    @property
    def total(self) -> float:
        """Seconds of all."""
        return self.computing + self.communicating + self.waiting


class Model:
    """One job on its device and network with the constants of its framework."""

    def __init__(self, job: Job, constants: Constants) -> None:
        self.job = job
        self.device: Device = device_of(job, constants)
        self.profile: Mapping[str, float] = constants.profile(f"{job.framework} {job.note}")
        self.network = Network(job, self.device)
        self.layer = computation.layer(job, self.device, self.profile)
        self.embedding, self.head = computation.ends(job, self.device, self.profile)
        in_layers = job.vocab * job.hidden / job.layer_parameters
        self.counts = list(job.counts) or schedule.stages(
            job.layers, job.pp, in_layers, balance=self.profile["balances_head"] > 0
        )

    def tensor(self) -> Passes:
        """Seconds of a layer's collectives over the tensor axis: one a block and pass."""
        job = self.job
        group = RankGroup.of(job.tp, 1, job.gpus_per_node)
        size = job.tokens * job.hidden * self.device.element
        one = self.network.all_reduce(group, size) * self.profile["tensor_exposed"]
        if job.tp > 1 and group.nodes > 1:
            one += 1e-6 * self.profile["tensor_hop_us"] * job.tp
        if "async tp" in job.note:
            one *= 0.35
        again = 2 * one if job.recompute == "full" else 0.0
        return Passes(2 * one, 2 * one + again)

    def sharded(self, tensor: Passes) -> float:
        """Seconds by which ZeRO 2 and 3 lengthen a layer's passes: what computing cannot hide."""
        job = self.job
        if job.zero < 2 or job.dp < 2:
            return 0.0
        size = job.layer_parameters / job.tp * self.device.element
        group = RankGroup.of(job.shard, job.tp, job.gpus_per_node)
        gather = self.network.gather(group, size, self.profile["sharded_card_share"])
        reduce = gather * self.profile["reduce_bytes"] / 2
        if job.shard < job.dp:
            outer = RankGroup.of(job.dp // job.shard, job.shard * job.tp, job.gpus_per_node)
            reduce += self.network.all_reduce(outer, size / job.shard)
        again = gather if job.zero == 3 else 0.0
        share = self.profile["sharded_overlap"]
        forward = gather - share * min(gather, self.layer.forward + tensor.forward)
        hidden = min(again + reduce, self.layer.backward + tensor.backward)
        return forward + again + reduce - share * hidden

    def micro(self, stage: int) -> Micro:
        """One micro-batch on a stage."""
        job, count = self.job, self.counts[stage]
        parameters = memory.parameters_of(job, count, stage)
        tensor = self.tensor()
        computing = count * self.layer.both
        communicating = count * (tensor.both + self.sharded(tensor))
        host = count * computation.host(job, self.profile) + 1e-6 * self.profile["host_micro_us"]
        if stage == 0:
            computing += self.embedding.both
            communicating += tensor.forward / 2
        if stage == job.pp - 1:
            computing += self.head.both
            communicating += tensor.forward / 2
        if job.accum > 1:
            shards = job.shard if job.zero >= 2 else 1
            computing += computation.accumulation(parameters / shards, self.device, self.profile)
        if job.pp > 1:
            size = 1.0 * job.tokens * job.hidden * self.device.element
            size /= job.tp if job.seq_parallel or self.profile["scatters_sends"] else 1
            stride = job.dp * job.tp
            sends = 2.0 * job.vpp * self.network.send(size, stride)
            communicating += sends * self.profile["sends_exposed"]
            if job.gpus > job.gpus_per_node and job.tp > 1:
                # The host waits for sends between nodes while rings of the tensor axis wait for it.
                a_rank = self.profile["sends_micro_us"] + count * self.profile["sends_layer_us"]
                host += 1e-6 * job.tp * a_rank
        waiting = max(0.0, host - computing - communicating)
        return Micro(computing, communicating, waiting)

    def gradients(self, parameters: float, backward: float) -> float:
        """Seconds of the data axis once a step that the backward pass does not hide."""
        job, profile = self.job, self.profile
        if job.dp < 2 or job.zero >= 2:
            return 0.0
        # Autocast keeps weights in fp32, and so are their gradients.
        autocast = job.autocast and profile["amp_masters"] > 0
        wide = 4.0 if self.device.element == 4 or autocast else 2.0
        if "bf16" in job.precision:
            # Some sum bf16 gradients in fp32 and send them so.
            wide = max(wide, profile["reduce_bytes"])
        group = RankGroup.of(job.dp, job.tp, job.gpus_per_node)
        whole = self.network.all_reduce(group, parameters * wide)
        exposed = whole
        if profile["overlap"] > 0:
            buckets = parameters * wide / (1e6 * profile["bucket_mb"])
            exposed = schedule.exposed(whole, profile["overlap"] * backward, buckets)
        if job.zero == 1:
            shard = RankGroup.of(job.shard, job.tp, job.gpus_per_node)
            exposed += profile["gather_exposed"] * self.network.gather(
                shard, parameters * self.device.element
            )
            if shard.nodes > 1:
                exposed += 1e-6 * profile["shard_us"] * job.shard
        return exposed

    def predict(self) -> Prediction:
        """The step: micro-batches through the stages, gradients, optimiser."""
        job = self.job
        kinds = {0, job.pp - 1, max(range(job.pp), key=lambda s: self.counts[s])}
        micros = {stage: self.micro(stage) for stage in kinds}
        middle = micros[max(kinds, key=lambda s: self.counts[s])]
        per_stage = {
            stage: micros[stage].total
            if stage in micros
            else middle.total * self.counts[stage] / max(self.counts)
            for stage in range(job.pp)
        }
        seconds = schedule.one_forward_one_backward(list(per_stage.values()), job.accum, job.vpp)
        slowest = max(micros.values(), key=lambda micro: micro.total)
        parameters = max(
            memory.parameters_of(job, self.counts[stage], stage) for stage in (0, job.pp - 1)
        )
        backward = self.counts[0] * self.layer.backward
        communication = self.gradients(parameters, backward)
        shards = job.shard if job.zero >= 1 else 1
        update = computation.optimiser(job, parameters / shards, self.device, self.profile)
        waiting = job.accum * slowest.waiting
        if self.profile["host_runs_ahead"] > 0:
            # The device is still busy with an update while the host is ahead in the next passes.
            waiting = max(0.0, waiting - update)
        whole = Prediction(
            computation=job.accum * slowest.computing,
            communication=job.accum * slowest.communicating + communication,
            bubble=seconds - job.accum * slowest.total,
            host=waiting + 1e-6 * self.profile["host_step_us"],
            optimiser=update,
            memory=memory.largest(job, self.profile, self.counts, self.device.element),
        )
        return whole.scaled(1 / job.accum) if job.per_micro else whole


def predict(job: Job, constants: Constants) -> Prediction:
    """Seconds and memory of a step; raises Refused for hardware or a precision not known."""
    return Model(job, constants).predict()


def on_gpus(job: Job, constants: Constants, parameters: int) -> tuple[Prediction, Prices]:
    """The step of `job` with all operators whole, and what cutting them over its tensor axis costs.

    Gradients are reduced after the backward pass, by one all-reduce over the data axis.
    """
    model = Model(replace(job, tp=1), constants)
    device, network = model.device, model.network
    data = RankGroup.of(job.dp, job.tp, job.gpus_per_node)
    reduced = network.all_reduce(data, 4.0 * parameters)
    whole = replace(model.predict(), communication=reduced)
    group, element = RankGroup.of(job.tp, 1, job.gpus_per_node), device.element
    efficiency = model.profile["efficiency"]
    return whole, Prices(
        ranks=job.tp,
        product=lambda *sizes: 3 * computation.product(device, *sizes) / efficiency,
        all_reduce=lambda numbers: network.all_reduce(group, element * numbers),
        gather=lambda numbers: network.gather(group, element * numbers),
        pieces=round(job.accum),
        a_parameter=(whole.communication + whole.optimiser) / parameters,
    )
