"""The check before a study starts, which `check`, `plan` and the workflow share."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline import strategies
from pipeline.claims.load import files_of, load_claims
from pipeline.corpus.build import changed
from pipeline.corpus.sources import check_files
from pipeline.errors import StudyError
from pipeline.machine import inherited, limits
from pipeline.models import stored
from pipeline.planner.memory import predict_sent, sent_between_nodes
from pipeline.resolved import first_runs
from pipeline.study.equal_work import check_equal_work
from pipeline.study.expansion import expand, tokens_spec
from pipeline.study.study import Study


def accept(study: Study, *, has_tokens: bool = False) -> None:
    """Everything that can be said of a validated study before its first job.

    The files of its corpus and tokeniser are looked for, and whether its runs can start here,
    unless its tokens were made (`has_tokens`): from then on nothing reads those, and each run looks
    for itself. Raises SamestepError.
    """
    if names := inherited.reserved(study.environment):
        raise StudyError(
            f"environment has {', '.join(names)}, which is set elsewhere (threads by "
            "cluster.threads_per_rank, a strategy's knobs by its options, interfaces between "
            "nodes by workflow/site.yaml); leave it out"
        )
    runs = expand(study)
    strategies.check(runs)
    stored.check(study.model)
    check_equal_work(study)
    load_claims(*files_of(study))
    if has_tokens:  # runs that were made, here or elsewhere, are read on any machine
        return
    threads = study.cluster.threads_per_rank or 1
    if study.cluster.network == "emulated" and threads > 1:
        raise StudyError(
            f"cluster.threads_per_rank {threads}: dilated time counts the CPU seconds of one "
            "thread; set it to 1, and further cores of a node carry the communication"
        )
    if here := [run.world.size for run in runs if run.world.num_machines == 1]:
        limits.check(max(here))
    for run in first_runs(study):
        if run.link is None:
            continue
        # Where the link alone takes longer than the run may, the run could only say `timeout`.
        steps, limit = run.spec.workload.steps, run.spec.timeout_seconds
        sent = sum(
            sent_between_nodes(run.layout, rank, one) or 0.0
            for rank in range(run.layout.processes_per_node)
            for one in predict_sent(run, rank)
        )
        least = steps * run.link.seconds(sent)
        if least > limit:
            raise StudyError(
                f"{run.spec.run_id}: its {steps} steps take {least:,.0f} s at least to send over "
                f"link {run.link.name} of {run.link.rate_mbits:g} Mbit/s, and timeout_seconds is "
                f"{limit}; raise one of them, or lower workload.steps"
            )
    check_files(tokens_spec(study))
    if study.tokenizer["kind"] == "pretrained":
        from pipeline.corpus.tokenisers import check_folder  # and its library

        check_folder(study.tokenizer, study.model.vocab_size)


def accept_to_run(study: Study) -> None:
    """Accept a study that is to run in this folder, where it may have tokens.

    A text that has changed since is a note on stderr: nothing is made again by itself.
    """
    results = Path("results", study.name)
    others = changed(study.corpus, study.tokenizer, results / "tokens")
    accept(study, has_tokens=others is not None)
    if others:
        print(
            f"note: the text has changed since the tokens of these runs were made: {others[0]}"
            f"{f' and {len(others) - 1} more' if others[1:] else ''}. What is in {results} is of "
            "the former text; bring that back, or remove the folder to train on the present one",
            file=sys.stderr,
        )
