"""Files and shells of somebody else: copied, edited and packed again, of another study or machine.

`test_documents.py` changes one value of a document; here each file is right by itself and is not
what its name, its folder or its neighbours say. What would be a wrong number is refused, and what
is the same content under another name is taken.
"""

import json
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.archive.layout import SUMS_FILE
from pipeline.archive.pack import contents, write_zip
from pipeline.claims.load import load_claims
from pipeline.claims.write import question
from pipeline.corpus.manifest import Manifest
from pipeline.errors import SamestepError
from pipeline.machine.facts import hardware
from tests.fake_records import a_verdict
from tests.hostile.entries import CALIBRATION, ROOT, Laid
from tests.hostile.entry import call
from tests.unit.archive.conftest import Members, finished_study, repack

RUN, OTHER_RUN = "runs/single/n1/r0", "runs/dps/n1/r0"
Prepare = Callable[[Path], object]


class Case(NamedTuple):
    """Preparations of a folder with `r` (results), `other` (of another study) and `z.zip` (of `r`).

    `words` stand in what the command says; `status` is its exit status.
    """

    prepare: Prepare
    command: str
    words: str
    status: int = 2


def packed(edit: Callable[[Members], object], *, summed: bool = True) -> Prepare:
    """Pack the archive again with other members, by default with the sums that they have."""
    return lambda here: repack(here / "z.zip", edit, summed=summed)


def _json(members: Members, name: str, **changes: Any) -> None:
    members[name] = json.dumps(json.loads(members[name]) | changes).encode()


def _bytes(edit: Callable[[bytes], bytes]) -> Prepare:
    return lambda here: (here / "z.zip").write_bytes(edit((here / "z.zip").read_bytes()))


def _methods(method: int) -> Prepare:
    return lambda here: repack(here / "z.zip", lambda members: None, method=method)


def _stated_huge(content: bytes) -> bytes:
    """Of the first member a size of almost 4 GiB stands in the directory."""
    at = content.index(b"PK\x01\x02")
    return content[: at + 24] + struct.pack("<I", 2**32 - 2) + content[at + 28 :]


def _other_loss(members: Members) -> None:
    name = f"{RUN}/steps.jsonl"
    members[name] = re.sub(rb'"loss": \d', b'"loss": 1', members[name], count=1)


def put(name: str, content: bytes = b"", *, summed: bool = True) -> Prepare:
    """The archive with one more member, or another content of one."""
    return packed(lambda members: members.update({name: content}), summed=summed)


def less(name: str, *, summed: bool = True) -> Prepare:
    return packed(lambda members: members.pop(name), summed=summed)


UNPACK = "unpack --archive z.zip --into out"
ARCHIVES: dict[str, Prepare] = {
    "with what macOS adds": put("__MACOSX/._run.json", b"\0"),
    "with a member in capitals": put("STUDY.JSON", b"{}"),
    "with a letter that looks alike": put("stud\u0443.json", b"{}"),
    "with a path that leaves": put("runs/../../x"),
    "with an absolute path": put("/etc/x"),
    "without sums": less(SUMS_FILE, summed=False),
    "with empty sums": put(SUMS_FILE, summed=False),
    "with sums in capitals": packed(
        lambda m: m.update({SUMS_FILE: m[SUMS_FILE].upper()}), summed=False
    ),
    "with sums in Latin-1": put(SUMS_FILE, b"\xfc", summed=False),
    "with a loss edited": packed(_other_loss),
    "with a record edited": packed(
        lambda m: _json(m, f"{RUN}/run.json", status="oom"), summed=False
    ),
    "with steps less": less(f"{RUN}/steps.jsonl"),
    "with a study of other steps": packed(
        lambda m: _json(m, "study.json", timeout_seconds=1, seeds=[7])
    ),
    "with other numbers of runs": packed(
        lambda m: _json(m, "archive.json", num_runs=1, num_recorded=1)
    ),
    "with the name of another": packed(lambda m: _json(m, "archive.json", study="other")),
    "with another manifest": packed(lambda m: _json(m, "tokens/manifest.json", num_documents=2)),
    "with a spec of another run": packed(
        lambda m: m.update({f"{RUN}/spec.json": m[f"{OTHER_RUN}/spec.json"]})
    ),
    "with a record of zeros": packed(lambda m: m.update({f"{RUN}/run.json": bytes(80 << 20)})),
    "of a stated 4 GiB": _bytes(_stated_huge),
    "of no members": packed(lambda m: m.clear(), summed=False),
    "cut before its directory": _bytes(lambda b: b[: len(b) // 2]),
}  # fmt: skip
"""Archives that have to be fetched again."""

TAKEN: dict[str, Prepare] = {
    "behind other bytes": _bytes(lambda b: b"#!/bin/sh\n" + b),
    "packed by LZMA": _methods(zipfile.ZIP_LZMA),
    "not compressed": _methods(zipfile.ZIP_STORED),
    "of more figures": put("figures/more.svg", b"<svg/>"),
}
"""Archives of the same content, packed otherwise."""


def _other_metrics(here: Path) -> None:
    """A record is another, and metrics were made of it, but no figure."""
    for name in (RUN, "metrics"):
        shutil.rmtree(here / "r" / name)
        shutil.copytree(here / "slower" / name, here / "r" / name)


def _no_dots(here: Path) -> None:
    """As `cp r/figures/*` copies."""
    for path in (here / "r").rglob(".*"):
        path.unlink()


def _link(name: str) -> Prepare:
    def prepare(here: Path) -> None:
        (here / "r" / name).rename(here / "elsewhere")
        (here / "r" / name).symlink_to(here / "elsewhere")

    return prepare


def _copied(source: str, target: str) -> Prepare:
    def prepare(here: Path) -> None:
        if (here / target).is_dir():
            shutil.rmtree(here / target)
        copy = shutil.copytree if (here / source).is_dir() else shutil.copy
        copy(here / source, here / target)

    return prepare


def _rebuilt(*then: Prepare) -> Prepare:
    """The archive, unpacked, and the products that it states beside its records."""

    def prepare(here: Path) -> None:
        assert call(here, *UNPACK.split())[0] == 0
        for name in ("metrics", "figures", "tables", "paper"):
            shutil.copytree(here / "r" / name, here / "out/fake" / name)
        for change in then:
            change(here)

    return prepare


def _rewritten(name: str, edit: Callable[[str], str]) -> Prepare:
    return lambda here: (here / name).write_text(edit((here / name).read_text()))


def _nothing(here: Path) -> None:
    pass


PACK = "archive --results r --out new.zip"
VERIFY = "verify --results out/fake"

RESULTS: dict[str, Case] = {
    "a copy without names in dots": Case(_no_dots, PACK, "made of these metrics"),
    "figures of other metrics": Case(_other_metrics, PACK, "made of these metrics"),
    "runs behind a symlink": Case(_link("runs"), PACK, "symlink"),
    "a record behind a symlink": Case(_link(f"{RUN}/run.json"), PACK, "symlink"),
    "the results behind a symlink": Case(
        lambda here: (here / "s").symlink_to("r"), "archive --results s --out new.zip", "", 0
    ),
    "a record that the metrics are not of": Case(
        _copied(f"slower/{RUN}", f"r/{RUN}"), PACK, "is not what these records"
    ),
    "results without their tokens": Case(
        lambda here: (here / "r/tokens/manifest.json").unlink(), PACK,
        "manifest.json does not exist",
    ),
    "a rebuild of edited records": Case(
        _rebuilt(_rewritten(f"out/fake/{OTHER_RUN}/run.json",
        lambda t: t.replace("no CUDA device", "no device"))), VERIFY, "were changed", 1,
    ),
    "a rebuild with empty sums": Case(
        _rebuilt(lambda here: (here / "out/fake" / SUMS_FILE).write_text("")), VERIFY,
        "no checksum", 1,
    ),
    "a rebuild that is none": Case(_nothing, "verify --results r", "`python -m pipeline unp"),
    "metrics of records of another study": Case(
        _copied("r/runs", "other/runs"),
        "metrics --study other/study.json --runs other/runs --out m.parquet", "another version",
    ),
    "claims on metrics of another study": Case(
        _nothing, "claims --study r/study.json --metrics other/metrics/metrics.parquet "
        "--claims CLAIMS --out v.json", "is of study 'other'",
    ),
}  # fmt: skip
"""Folders of results of somebody else, or of oneself after some copying."""


GIGABIT = CALIBRATION["links"]["1gbit"]


def _calibrated(**changes: Any) -> Prepare:
    """A calibration of this machine for `smoke`, but for the changes."""

    def prepare(here: Path) -> None:
        content = CALIBRATION | {"hardware": hardware()} | changes
        (here / "c.json").write_text(json.dumps(content))

    return prepare


def _points(edit: Callable[[list[str]], Iterable[str]]) -> Prepare:
    """Two of the published points, but for the changes of their lines."""
    lines = (ROOT / "pipeline/reference/points/torchtitan.csv").read_text().splitlines()[:3]
    return lambda here: (here / "p.csv").write_text("\n".join(edit(lines)) + "\n")


def _verdict(results: Path, study: str, *, folder: str = "", **changes: Any) -> None:
    """A verdict on a shipped claim, as the study made it."""
    claim = load_claims(ROOT / "workflow/config/bai2022/claims.yaml")[0]
    [one] = a_verdict()["verdicts"]
    own = {
        "id": claim.id, "publication": claim.document, "sentence": claim.sentence,
        "question": question(claim), "runs": [f"{study}/a/n1/r0"],
        "claimed": claim.region and one["claimed"] | {"text": str(claim.region)},
    }  # fmt: skip
    path = results / (folder or study) / "claims/verdicts.json"
    path.parent.mkdir(parents=True)
    content = a_verdict() | {"study": study, "verdicts": [one | own | changes]}
    path.write_text(json.dumps(content))


PREDICT = "predict --study smoke --calibration c.json"
POINTS = "predict --points p.csv --out o.csv"
PREDICTED: dict[str, Case] = {
    "a calibration of this study here": Case(_calibrated(), PREDICT, "", 0),
    "a calibration of a faster link of that name": Case(
        _calibrated(links={"1gbit": GIGABIT | {"rate_mbits": 9000}}), PREDICT,
        "measured with links",
    ),
    "a calibration of wider nodes": Case(
        _calibrated(cores_per_node=4), PREDICT, "measured with cores_per_node 4"
    ),
    "a calibration of another processor": Case(
        _calibrated(hardware=hardware() | {"cpu_model": "Z80"}), PREDICT, "cpu_model Z80"
    ),
    "points that are right": Case(_points(lambda p: p), POINTS, "", 0),
    "points with a comma more": Case(
        _points(lambda p: [p[0], p[1].replace("8b,", "8b,,"), p[2]]), POINTS, "p.csv:2 has"
    ),
    "points with a column twice": Case(
        _points(lambda p: [f"{p[0]},gpus", *(f"{one},99" for one in p[1:])]), POINTS, "twice"
    ),
    "points with an open quote": Case(
        _points(lambda p: [p[0], f'"{p[1]}', p[2]]), POINTS, "is not CSV"
    ),
    "points with semicolons": Case(
        _points(lambda p: [one.replace(",", ";") for one in p]), POINTS, "no columns hardware"
    ),
    "points of no row": Case(_points(lambda p: p[:1]), POINTS, "has no row"),
    "a page of a copied study": Case(
        lambda here: _verdict(here / "x", "smoke", folder="copy"),
        "index --results x --out i.html", "is of study 'smoke', not of 'copy'",
    ),
    "a page in the place of its table": Case(
        lambda here: _verdict(here / "x", "smoke"), "index --results x --out i.csv",
        "its CSV lies",
    ),
    "a page of no study": Case(_nothing, "index --results r", "make studies"),
}  # fmt: skip
"""Predictions, layouts and the page of all claims, from files of somebody else."""

NO_EFFECT = (
    "plan --study smoke --auto --calibration c.json --link 1gbit",
    "plan --study bai2022 --auto --device v100-16 --link 100gbit --calibration c.json",
    "plan --study smoke --nodes 2",
    "plan --model 1.3B --device a100-80 --calibration c.json",
    "predict --study smoke --calibration c.json --base",
    "predict --points p.csv --out o.csv --metrics c.json",
    "predict --score --base",
    "index --list --results r",
)
"""An option that would do nothing beside the others."""

TABLES = {"results": RESULTS, "predicted": PREDICTED}


@pytest.fixture(scope="module")
def good(laid: Laid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results, those of another study and of slower runs, and an archive."""
    folder = tmp_path_factory.mktemp("foreign")
    work = json.loads(laid.study.read_text())["workload"]
    shutil.copytree(laid.results, folder / "r")
    finished_study(folder / "other", study="other", workload=work)
    shutil.copytree(laid.results, folder / "slower")
    _make_slower(folder / "slower")
    write_zip(contents(folder / "r"), folder / "z.zip")
    return folder


def _make_slower(results: Path) -> None:
    from pipeline.metrics import table
    from pipeline.metrics.build import build
    from pipeline.study.study import Study
    from tests.fake_records import edit_record

    def more_memory(run: dict[str, Any]) -> None:
        run["ranks"][0]["peak_memory_bytes"] += 4096

    edit_record(results / RUN, more_memory)
    study = Study.of(json.loads((results / "study.json").read_text()))
    table.write(build(study, results / "runs"), results / "metrics/metrics.parquet")


@pytest.fixture
def here(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    shutil.copytree(good, folder)
    monkeypatch.chdir(folder)
    return folder


def _of(here: Path, prepare: Prepare, command: str, wanted: int, words: str) -> None:
    """Hold exit status and words of a command after the preparation."""
    prepare(here)
    claims = str(ROOT / "workflow/config/bai2022/claims.yaml")
    status, error = call(here, *command.replace("CLAIMS", claims).split())
    assert status == wanted and words in error, (status, error)


@pytest.mark.parametrize("name", [*ARCHIVES, *TAKEN])
def test_archives_that_were_packed_again(here: Path, name: str) -> None:
    if name in TAKEN:
        _of(here, TAKEN[name], UNPACK, 0, "")
    else:
        _of(here, ARCHIVES[name], UNPACK, 2, "fetch the archive")


@pytest.mark.parametrize(("table", "name"), [(t, name) for t in TABLES for name in TABLES[t]])
def test_files_of_another_study_or_machine(here: Path, table: str, name: str) -> None:
    case = TABLES[table][name]
    _of(here, case.prepare, case.command, case.status, case.words)


def test_options_that_would_do_nothing(here: Path) -> None:
    _calibrated()(here)
    _points(lambda p: p)(here)
    for one in NO_EFFECT:
        status, error = call(here, *one.split())
        assert status == 2 and "would do nothing" in error, (one, status, error)


def test_a_verdict_on_another_version_of_a_claim_is_none(here: Path) -> None:
    _verdict(here / "x", "smoke", sentence="Something else.")
    assert call(here, *"index --results x --out i.html".split())[0] == 0
    assert "another version of this claim" in (here / "i.csv").read_text()


def test_an_archive_has_the_name_of_its_study_wherever_that_lies(here: Path, monkeypatch) -> None:
    monkeypatch.chdir(here / "r")
    assert call(here, "archive", "--results", ".")[0] == 0
    assert [path.name for path in (here / "r/archives").iterdir()] == ["fake.zip"]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def _keeping_time(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """As `cp -p` and `rsync -t` do."""

    def changed(path: Path) -> None:
        state = path.stat()
        change(path)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    return changed


def _replaced(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    _keeping_time(_flip)(copy)
    copy.replace(path)


SHARDS: dict[str, Callable[[Path], None]] = {
    "a token changed, the time kept": _keeping_time(_flip),
    "a shard replaced by one of that size and time": _replaced,
}


@pytest.mark.parametrize("name", SHARDS)
def test_tokens_that_were_read_before(small_tokens: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(small_tokens, tmp_path / "tokens"))
    shard = folder / Manifest.load(folder, verify=True).shards[0].file
    SHARDS[name](shard)
    with pytest.raises(SamestepError, match="has SHA-256"):
        Manifest.load(folder, verify=True)
