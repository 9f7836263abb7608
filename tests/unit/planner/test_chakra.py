"""Chakra traces, read by a reader of our own."""

import csv
import io
import json
import zipfile
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.cost.predict import Prediction
from pipeline.errors import RecordError
from pipeline.parallel.mesh import Layout
from pipeline.planner import chakra
from pipeline.planner.chakra import COLLECTIVE, COMPUTE, RECEIVES, SENDS, RankStep
from pipeline.planner.memory import predict_sent
from pipeline.records import read_record
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.load import load_study

SAMPLE = Path("docs/example/smoke.zip")


def varint(stream: io.BytesIO) -> int:
    """A number of seven bits a byte; -1 at the end."""
    value, shift = 0, 0
    while byte := stream.read(1):
        value |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return value
    return -1


def fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a protobuf message, by number: integers, and bytes of what has a length."""
    stream, found = io.BytesIO(message), defaultdict[int, list[Any]](list)
    while (key := varint(stream)) >= 0:
        assert key & 7 in (0, 2)
        value = varint(stream)
        found[key >> 3].append(value if key & 7 == 0 else stream.read(value))
    return found


def messages(path: Path) -> list[bytes]:
    """The messages of a file, each of which stands behind its length."""
    stream, found = io.BytesIO(path.read_bytes()), []
    while (size := varint(stream)) >= 0:
        found.append(stream.read(size))
        assert len(found[-1]) == size
    return found


def read(folder: Path) -> list[list[dict[str, Any]]]:
    """The nodes of each rank, with their attributes."""
    ranks: list[list[dict[str, Any]]] = []
    for rank in range(len(list(folder.glob("trace.*.et")))):
        head, *others = map(fields, messages(folder / f"trace.{rank}.et"))
        assert head[1] == [b"0.0.4"]
        ranks.append([])
        for one in others:
            [number], [name], [kind], [micros] = (one[field] for field in (1, 2, 3, 7))
            deps = [varint(io.BytesIO(packed)) for packed in one[5]]
            node = {"id": number, "name": name.decode(), "type": kind, "deps": deps}
            node["micros"] = micros
            for attribute in map(fields, one[10]):
                [key], ([value],) = attribute.pop(1), attribute.values()
                node[key.decode()] = value
            ranks[-1].append(node)
    return ranks


def checked(folder: Path) -> list[list[dict[str, Any]]]:
    """As `read`: no node waits for itself over any ranks; each send has one receive of its size."""
    ranks, groups = read(folder), json.loads((folder / "comm_group.json").read_text())
    graph = defaultdict[Any, set[Any]](set)
    sides: dict[int, dict[Any, Any]] = {SENDS: {}, RECEIVES: {}}
    seen, members = Counter[Any](), Counter[Any]()
    for rank, nodes in enumerate(ranks):
        keys: dict[int, Any] = {}
        for node in nodes:
            key: Any = (rank, node["id"])
            if node["type"] == COLLECTIVE:
                # All ranks of a group are in its n-th collective at once.
                group = node.get("pg_name", b"").decode()
                seen[rank, group] += 1
                key = (group, seen[rank, group], node["name"])
                members[key] += 1
                assert not group or rank in groups[group]
            elif node["type"] in sides:
                pair = tuple(node[name] for name in ("comm_src", "comm_dst", "comm_tag"))
                assert pair[node["type"] == RECEIVES] == rank and pair not in sides[node["type"]]
                sides[node["type"]][pair] = key, node["comm_size"]
            keys[node["id"]] = key
            graph[key] |= {keys[one] for one in node["deps"]}
    assert sides[SENDS].keys() == sides[RECEIVES].keys()
    for pair, (key, size) in sides[RECEIVES].items():
        graph[key].add(sides[SENDS][pair][0])
        assert size == sides[SENDS][pair][1]
    TopologicalSorter(graph).prepare()
    assert all(n == len(groups.get(group, ranks)) for (group, *_), n in members.items())
    return ranks


def sent(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes that a rank sends along each axis."""
    found = Counter[str]()
    for node in nodes:
        if node["type"] != COMPUTE:
            found[node["name"].partition(" ")[2]] += node["wire_bytes"]
    return found


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's profiled runs and its table of sends."""
    folder = tmp_path_factory.mktemp("sample")
    with zipfile.ZipFile(SAMPLE) as archive:
        names = [n for n in archive.namelist() if "/p0/" in n or n.endswith("sends.csv")]
        archive.extractall(folder, names)
    return folder


def test_traces_of_profiled_runs_have_the_bytes_of_the_table_sends(sample, tmp_path) -> None:
    for row in csv.DictReader((sample / "tables/sends.csv").open()):
        place = f"{row['cell']}/n{row['nodes']}"
        run, out = sample / "runs" / place / "p0", tmp_path / place
        assert main(["trace", "--run", str(run), "--out", str(out)]) == 0
        ranks = checked(out)
        assert sent(ranks[int(row["rank"])])[row["axis"]] == float(row["counted_bytes"])
        record = read_record(run)
        for rank, nodes in enumerate(ranks):
            last = [one for one in record.steps if one.rank == rank][-1]
            assert abs(sum(node["micros"] for node in nodes) - 1e6 * last.seconds) <= 1


@pytest.mark.parametrize("study", ["layouts", "smoke"])
def test_each_strategy_s_prediction_can_be_traced(study: str, tmp_path: Path) -> None:
    """With the bytes of its formula, pipelines and meshes included."""
    prediction = Prediction(0.09, 0.02, 0.01, 0.0, 0.003, 1.0)
    shapes = set()
    for spec in expand(load_study(Path(f"workflow/config/{study}/study.yaml"))):
        if spec.repeat:
            continue
        run, out = resolve(spec), tmp_path / spec.cell / str(spec.world.nodes)
        layout, steps = chakra.of_prediction(run, prediction)
        chakra.write(out, layout, steps, spec.run_id, "predicted")
        ranks = checked(out)
        for rank, nodes in enumerate(ranks):
            formula = {one.axis: round(one.bytes) for one in predict_sent(run, rank)}
            assert sent(nodes) == {axis: size for axis, size in formula.items() if size}
            work = sum(node["micros"] for node in nodes if node["type"] == COMPUTE)
            assert abs(work - 1e6 * (0.093 + 0.02 * (not sent(nodes)))) <= len(nodes)
            shapes |= {(node["type"], "pg_name" in node) for node in nodes}
    if study == "layouts":
        assert shapes >= {(SENDS, False), (RECEIVES, False), (COLLECTIVE, True)}


def calls(kind: str, count: int, ranks: int = 2, axis: str = "data") -> dict[str, Any]:
    return {"kind": kind, "axis": axis, "ranks": ranks, "count": count, "payload_bytes": 10,
            "wire_bytes": 10}  # fmt: skip


def steps(*own: list[dict[str, Any]]) -> list[RankStep]:
    passes = [("forward", 0, 0, 1.0), ("backward", 0, 0, 2.0)]
    return [RankStep(passes, 0.5, {"rest": 0.25}, one) for one in own]


DATA = Layout((("data", 3),), 1, "cpu", "gloo")


def test_sends_around_a_ring_go_to_the_next_rank(tmp_path) -> None:
    """As `ring_reduce_scatter` sends them; bytes that do not divide are all there."""
    chakra.write(tmp_path, DATA, steps(*[[calls("send", 4)]] * 3), "x", "measured")
    ranks = checked(tmp_path)
    assert [node["comm_dst"] for nodes in ranks for node in nodes if node["type"] == SENDS] == [
        *[1] * 4, *[2] * 4, *[0] * 4,
    ]  # fmt: skip
    assert sent(ranks[0]) == {"data": 10}
    # Of two ranks that gather too, both send behind the passes.
    pair = steps(*[[calls("send", 1), calls("all_gather", 1)]] * 2)
    chakra.write(tmp_path, Layout((("data", 2),), 1, "cpu", "gloo"), pair, "x", "measured")
    for nodes in read(tmp_path)[:2]:
        assert [node["type"] for node in nodes] == [4, 4, COLLECTIVE, SENDS, RECEIVES, 4]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([[calls("send", 1)], [], []], "the receivers of 0 are known"),
        ([[calls("all_reduce", 1, 3)], [], []], "of ranks that count equally many"),
        ([[calls("allgather_into", 1, 3)]] * 3, "cannot be traced; known are all_reduce"),
    ],
)
def test_what_cannot_be_traced_is_refused(own, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        chakra.trace(DATA, steps(*own))


def test_a_run_without_counts_is_refused(sample, tmp_path, capsys) -> None:
    record = read_record(sample / "runs/dps/n2/p0")
    del record.run["ranks"][0]["sent"]
    with pytest.raises(RecordError, match=r"n2/p0 \(ok\) has not counted what its ranks sent;"):
        chakra.of_record(record)
    assert main(["trace", "--study", "smoke", "--out", str(tmp_path / "x")]) == 2
    assert "--study needs --calibration" in capsys.readouterr().err
    assert main(["trace", "--run", str(tmp_path), "--out", str(tmp_path / "x")]) == 2
    assert "holds no record; give the folder of a profiled run" in capsys.readouterr().err
