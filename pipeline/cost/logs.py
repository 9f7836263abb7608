"""Logs of Megatron-LM and torchtitan as points *measured elsewhere*: `read(path, given)`.

A log becomes a row of a points file and not a record: a record holds the spec and the tokens of a
training of ours, which no foreign log has, while rows are what `predict --points` is held against.
Lines on a step are whole or refused by their number; all others are passed over, but for the
configuration that they print.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.cost.job import CONFIGURATION, TEXTS, Refused, number_of
from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.errors import PredictionError

ADDED = ("step_s", "steps", "loss", "mem_gib", "mem_kind", "status", "origin", "place")
NEEDED = (
    "hardware", "gpus", "gpus_per_node", "node_net_gbps", "layers", "hidden", "heads", "ffn",
    "gated", "vocab", "seq", "tied", "dp", "tp", "pp", "micro", "precision",
)  # fmt: skip
"""Columns without which a row has no prediction, or one of what a default assumes."""

COLOUR = re.compile(r"\x1b?\[\d+(?:;\d+)*m")

# Both as their programs print a step, since 2020 and 2024; forks add fields behind Megatron's.
MEGATRON = re.compile(r"\biteration +\d+/|elapsed time per iteration")
ITERATION = re.compile(
    r"\biteration +(?P<step>\d{1,12})/ *\d+ \|"
    r".* elapsed time per iteration \(ms\): (?P<ms>\d+\.\d+) \|"
    r".* global batch size: +(?P<batch>\d+) \|(?:.* lm loss: (?P<loss>\d\.\d+E[+-]\d+|nan) \|)?"
    r".* number of skipped iterations: +(?P<skipped>\d+) \|"
    r" number of nan iterations: +\d+ \|(?:.*\|)?\s*$"
)
TORCHTITAN = re.compile(r"^(?!.*validate step).*(?:INFO - step:|\b[tw]ps: )")
STEP = re.compile(
    r"INFO - step: +(?P<step>\d{1,12}) +loss: +(?P<loss>-?\d+\.\d+|nan|inf) +(?:grad_norm: +\S+ +)?"
    r"memory: +(?P<memory>\d+\.\d+)GiB\([\d.]+%\) +[tw]ps: +(?P<rate>[1-9][\d,]*) +"
    r"(?:tflops: +[\d,.]+ +)?mfu: +(?:[\d.]+%|N/A)\s*$"
)
MEMORY = re.compile(r"memory \(MB\) (?:\|[^|]*){3}\| max reserved: (\d+\.\d+)")
ARGUMENT = re.compile(r"\b(\w+) \.{2,} (\S.*?)\s*$", re.MULTILINE)
ARGUMENTS = {
    "gpus": "world_size", "layers": "num_layers", "hidden": "hidden_size", "ffn": "ffn_hidden_size",
    "heads": "num_attention_heads", "seq": "seq_length", "dp": "data_parallel_size",
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size", "vpp": "virtual_pipeline_model_parallel_size",
    "micro": "micro_batch_size", "optimiser": "optimizer", "experts": "num_experts",
    "recompute": "recompute_granularity",
}  # fmt: skip
"""Columns, by the arguments that Megatron prints."""
FACTS = (
    r"capacity: (?P<hardware>.+) with (?P<device_gib>[\d.]+)GiB memory",
    r"local batch size (?P<micro>\d+), global batch size (?P<global_batch>\d+)",
    r"global batch size .*sequence length (?P<seq>\d+)",
    r"Building (?P<model>\S+ \S+) with \w*ModelArgs\(",
    r"ModelArgs\(.*\bdim=(?P<hidden>\d+)",
    r"ModelArgs\(.*\bn_layers=(?P<layers>\d+)",
    r"ModelArgs\(.*\bn_heads=(?P<heads>\d+)",
    r"ModelArgs\(.*\bn_kv_heads=(?P<kv_heads>\d+)",
    r"ModelArgs\(.*\bvocab_size=(?P<vocab>\d+)",
    r"Applied (?P<recompute>selective|full) activation checkpointing",
    r"Compiling each .* with (?P<note>torch\.compile)",
    r"(?P<precision>[Ff]loat8) .*(?:active|training)",
)
"""Lines of torchtitan; a named group is the column that it has."""
MESH = re.compile(r"Building \d-D device mesh with [\[(](.*?),?[\])], \[(\d{1,6}(?:, \d{1,6})*)\]")


def assigned(text: str) -> dict[str, str]:
    """Columns of `name=value,name=value`.

    Raises PredictionError for a name that is no column, or a word where a column holds a number.
    """
    pairs = [one.partition("=")[::2] for one in text.split(",")] if text else []
    for name, value in pairs:
        if name not in CONFIGURATION or not value:
            raise PredictionError(
                f"--set {name[:40]!r} gives no column a value; write NAME=VALUE,... of the columns "
                f"{', '.join(CONFIGURATION)}"
            )
        if name not in TEXTS:
            try:
                number_of({name: value}, name)
            except Refused as refused:
                raise PredictionError(f"--set {refused}; write {name}=NUMBER") from None
    return dict(pairs)


def read(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The row of a log; what is `given` goes before what it prints.

    The step time is the median of the printed ones but for the first, which warms up, and of
    Megatron those in which updates were skipped or the batch was not yet the last one. Memory is
    the most that the allocator reserved. Raises PredictionError.
    """
    text = COLOUR.sub("", read_text(path, "", PredictionError, max_bytes=MAX_MADE_BYTES))
    name, whole = "", ITERATION
    timed: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):
        is_titan = TORCHTITAN.search(line)
        if not (is_titan or MEGATRON.search(line)):
            continue
        if not name:
            name, whole = ("torchtitan", STEP) if is_titan else ("Megatron-LM", ITERATION)
        if (step := whole.search(line)) is None:
            raise PredictionError(
                f"{path}:{number} is cut off or of another program; expected a whole line of "
                f"{name} on a step: take it out"
            )
        if timed and int(step["step"]) <= (last := int(timed[-1]["step"])):
            raise PredictionError(
                f"{path}:{number} is step {step['step']} behind step {last}; give the log of one "
                "rank and one start"
            )
        timed.append(step.groupdict())
    if len(timed) < 2:
        raise PredictionError(
            f"{path} has too few lines of Megatron-LM or torchtitan on a step ({len(timed)}): the "
            "first warms up; give a log of two or more"
        )
    row = dict.fromkeys((*CONFIGURATION, "experts", *ADDED), "")
    row |= {"framework": name, "status": "ok", "origin": "measured elsewhere", "place": path.name}
    if name == "torchtitan":
        row |= _of_torchtitan(text) | {**given}
        sizes = [row[column] for column in ("global_batch", "seq", "gpus")]
        if not all(re.fullmatch(r"[1-9]\d{0,11}", size) for size in sizes):
            raise PredictionError(
                f"{path} has tokens a second on a GPU and {', '.join(sizes)!r} as global_batch, "
                "seq, gpus; a step time needs them: give --set gpus=8,global_batch=16,seq=8192"
            )
        batch, positions, gpus = map(int, sizes)
        rates = [float(one["rate"].replace(",", "")) for one in timed[1:]]
        seconds = [batch * positions / gpus / rate for rate in rates]
        reserved = [float(one["memory"]) for one in timed]
    else:
        alike = {"batch": timed[-1]["batch"], "skipped": "0"}
        row |= _of_megatron(text) | {"global_batch": alike["batch"], **given}
        seconds = [float(one["ms"]) / 1000 for one in timed[1:] if alike.items() <= one.items()]
        reserved = [float(one) / 1024 for one in MEMORY.findall(text)]
        if not seconds:
            raise PredictionError(f"{path} skipped updates in all lines; give a longer log")
    row |= {"step_s": f"{median(seconds):.6g}", "steps": str(len(seconds))}
    # The ranks of a pipeline that see no loss print -1, Megatron none where it skipped all updates.
    losses = [loss for one in timed if (loss := float(one["loss"] or "nan")) >= 0]
    row["loss"] = f"{losses[-1]:.6g}" if losses else ""
    if any(reserved):
        row |= {"mem_gib": f"{max(reserved):.6g}", "mem_kind": "max reserved"}
    return row


def _of_megatron(text: str) -> dict[str, str]:
    """The configuration that Megatron prints as its arguments."""
    arguments = {
        name: value for name, value in ARGUMENT.findall(text) if value not in ("None", "False")
    }
    row = {column: arguments[name] for column, name in ARGUMENTS.items() if name in arguments}
    if padded := re.search(r"padded vocab .*\(new size: (\d+)\)", text):
        row["vocab"] = padded[1]
    if arguments:
        row["precision"] = next((n for n in ("fp8", "bf16", "fp16") if n in arguments), "fp32")
        stages = {"use_distributed_optimizer": "1", "use_torch_fsdp2": "3"}
        row["zero"] = next((stage for name, stage in stages.items() if name in arguments), "0")
        # Since 2024 attention is a backend, and fused unless that says not.
        backend = arguments.get("attention_backend", "unfused")
        flags = {
            "gated": "swiglu" in arguments, "seq_parallel": "sequence_parallel" in arguments,
            "tied": "untie_embeddings_and_output_weights" not in arguments,
            "flash": "use_flash_attn" in arguments or not re.search("unfused|local", backend),
        }  # fmt: skip
        row |= {column: str(int(flag)) for column, flag in flags.items()}
        if "group_query_attention" in arguments:
            row["kv_heads"] = arguments.get("num_query_groups", "")
        if {"checkpoint_activations", "activations_checkpoint_method"} & {*arguments}:
            row["recompute"] = "full"
    return {"family": "gpt", **row}


def _of_torchtitan(text: str) -> dict[str, str]:
    """The configuration that torchtitan prints: device, mesh, batch and sizes of the model."""
    row: dict[str, str] = {}
    for fact in FACTS:
        if printed := re.search(fact, text):
            row |= printed.groupdict()
    if mesh := MESH.search(text):
        names, sizes = re.findall(r"\w+", mesh[1]), [int(size) for size in mesh[2].split(",")]
        axes: dict[str, int] = dict(zip(names, sizes, strict=False))
        data = math.prod(size for name, size in axes.items() if name.startswith("dp"))
        shards = axes.get("dp_shard", axes.get("dp", 1))
        row |= {name: str(axes.get(name, 1)) for name in ("tp", "pp", "cp")}
        row |= {"gpus": str(math.prod(sizes)), "dp": str(data), "zero": "3" if shards > 1 else "0"}
        row["note"] = " ".join([row.get("note", ""), "HSDP" * (1 < shards < data)]).strip()
        if row["pp"] != "1":
            row["micro"] = ""  # a pipeline cuts the local batch once more, and does not print how
    return row


def shown(row: Mapping[str, str]) -> str:
    """Line on a row: its values, and the columns that its prediction lacks."""
    lacks = ", ".join(name for name in NEEDED if not row[name])
    memory = f", {float(row['mem_gib']):.4g} GiB" if row["mem_gib"] else ""
    loss = f", loss {row['loss']}" if row["loss"] else ""
    more = f"; it does not print {lacks}: give them with --set" if lacks else ""
    step = f"{row['step_s']} s a step (median of {row['steps']})"
    return f"{row['place']}: {step}{memory}{loss}{more}"
