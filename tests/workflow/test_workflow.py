"""The whole workflow on a study of seconds: killed, taken up again, finished, repeated."""

import json
import re
from pathlib import Path

import yaml

from tests.workflow.project import HUB_TOKEN, Project, job_counts, make_project

CLAIMS = "workflow/config/bai2022/claims.yaml"
FIGURE_MODULE = "pipeline/figures/speedup.py"
TRAINING_MODULE = "pipeline/training/loop.py"
TEMPLATE = "pipeline/page/page.html.j2"


def test_snakemake_looks_at_its_jobs_when_one_ends_and_not_all_the_time(said: str) -> None:
    """It would take a part of a core from the runs that are timed."""
    assert 0 < said.count("Resources before job selection") <= 2 * said.count("Finished jobid")


def test_a_killed_workflow_finishes_when_started_again(finished: Project) -> None:
    assert (finished.results / "paper/paper.pdf").read_bytes().startswith(b"%PDF")
    assert not list(finished.results.glob("**/*.tmp*"))
    assert not list(finished.results.glob("**/ranks"))


def test_a_token_of_the_environment_is_in_no_file(finished: Project) -> None:
    assert finished.environment()["HF_TOKEN"] == HUB_TOKEN
    parts = (finished.results, finished.folder / ".snakemake")
    files = [path for part in parts for path in part.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert not [path for path in files if HUB_TOKEN.encode() in path.read_bytes()]


def test_every_run_has_a_record_also_the_one_that_cannot_run_here(finished: Project) -> None:
    records = sorted(finished.results.glob("runs/*/*/*/run.json"))
    statuses = {r.parts[-4]: json.loads(r.read_text())["status"] for r in records}
    assert statuses == {"single": "ok", "dps": "ok", "sps": "ok", "apex": "unsupported"}
    reason = json.loads((finished.results / "runs/apex/n1/r0/run.json").read_text())["reason"]
    assert "CUDA" in reason
    [rank] = json.loads((finished.results / "runs/single/n1/r0/run.json").read_text())["ranks"]
    assert rank["peak_flops_per_second"] > 1e6


def test_every_claim_that_the_study_names_has_a_verdict(finished: Project) -> None:
    verdicts = json.loads((finished.results / "claims/verdicts.json").read_text())["verdicts"]
    assert len(verdicts) > 20
    assert all("this study ran on a CPU" in v["line"] for v in verdicts if not v["effect"])


def test_each_target_by_itself_carries_out_all_these_changes(finished: Project) -> None:
    """No module trains anything anew, and the figure's draws the same bytes."""
    figure = finished.results / "figures/speedup.png"
    before = figure.read_bytes()
    for name in (CLAIMS, FIGURE_MODULE, TRAINING_MODULE):
        with (finished.folder / name).open("a") as file:
            file.write("\n# changed\n")
    assert finished.jobs() == {"claims": 1, "figures": 1, "manuscript": 1, "page": 1, "all": 1}
    template = finished.folder / TEMPLATE
    template.write_text(template.read_text().replace("</body>", "<p>changed</p></body>"))
    products = [finished.results / name for name in ("tables/scaling.tex", "paper/paper.pdf")]
    for product in (figure, *products):
        product.unlink(missing_ok=True)
    finished.run("--cores", "all", "figures", "tables")
    assert figure.is_file() and [product.is_file() for product in products] == [True, False]
    finished.run("--cores", "all", "paper")
    assert products[1].is_file()
    assert figure.read_bytes() == before
    assert job_counts(finished.run("--cores", "2").stderr) == {"page": 1, "all": 1}
    assert "<p>changed</p>" in (finished.results / "report.html").read_text()


def test_a_removed_record_is_made_again_and_another_limit_trains_what_ran_out_of_it(
    finished: Project,
) -> None:
    """A record of the finished study is made to say that its run did; another title trains none."""
    record, text = finished.results / "runs/dps/n2/r0/run.json", finished.study.read_text()
    runs = finished.results.glob("runs/*/*/r0/run.json")
    targets = [str(path.relative_to(finished.folder)) for path in runs]
    aside = record.rename(finished.folder / "aside.json")
    removed = finished.jobs()
    late = {"status": "timeout", "reason": "not done"}
    record.write_text(json.dumps(json.loads(aside.read_text()) | late))
    study = yaml.safe_load(text)
    study["workload"]["checkpoint_every"] = 3
    study["title"] = "Renamed study"

    def jobs(more_seconds: int) -> dict[str, int]:
        limit = study["timeout_seconds"] + more_seconds
        finished.study.write_text(yaml.safe_dump(study | {"timeout_seconds": limit}))
        return finished.jobs(*targets)

    longer, shorter = jobs(1), jobs(-1)
    finished.study.write_text(text)
    aside.rename(record)
    assert (longer["train"], longer["run_spec"], shorter) == (1, 1, {})
    assert (removed["train"], removed["metrics"]) == (1, 1)


def test_another_seed_trains_again_and_keeps_the_tokens(finished: Project) -> None:
    text = finished.study.read_text()
    finished.study.write_text(text.replace("20220613", "7"))
    jobs = finished.jobs()
    finished.study.write_text(text)
    # Four timed runs and four profiled ones.
    assert jobs["train"] == 8 and "tokens" not in jobs


def test_the_report_holds_all_figures_and_tables(finished: Project) -> None:
    finished.run("--report", "results/tiny/snakemake-report.html")
    report = (finished.results / "snakemake-report.html").read_text()
    for name in ("throughput", "speedup", "loss_step", "parity", "environment"):
        assert name in report


def test_make_paper_says_where_results_lie(finished: Project) -> None:
    """Also of a study file whose name a shell would take apart."""
    name = 'it\'s a "tiny" $study `of` ü.yaml'
    (finished.folder / name).write_text(finished.study.read_text())
    done = finished.make("paper", f"STUDY={name}")
    assert done.returncode == 0, done.stderr[-3000:]
    for part in ("paper/paper.pdf", "report.html", "figures", "tables"):
        assert f"results/tiny/{part}" in done.stdout
        assert (finished.results / part).exists()
    assert "<h1>Tiny study for tests</h1>" in (finished.results / "report.html").read_text()
    # One line of progress, and all that Snakemake says in a file.
    assert re.fullmatch(r"(\d+) of \1 runs.*", done.stderr.splitlines()[0])
    assert "rule " not in done.stderr
    (log,) = (finished.results / "logs/workflow").iterdir()
    assert "Nothing to be done" in log.read_text()


def test_a_broken_study_stops_before_any_job(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.study.write_text(f"{project.study.read_text()}repaets: 3\n")
    done = project.run("--cores", "2", check=False)
    assert done.returncode == 2
    *before, line = done.stderr.splitlines()
    assert "unknown keys 'repaets'" in line
    assert all(one.startswith("Using workflow specific profile") for one in before)
    assert not project.results.exists()
