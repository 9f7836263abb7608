"""Answers to the paper checklist of NeurIPS that the records of a study know.

https://neurips.cc/public/guides/PaperChecklist. A question about people, society or theory that no
record answers is left to the authors and says so; no answer is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

YES, NO, NA, AUTHORS = "Yes", "No", "NA", "for the authors"


def answers(numbers: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(question, answer, grounds) in the checklist's order; `numbers` are the paper's facts."""
    runs, appendix, measured = numbers["runs"], numbers["appendix"], numbers["measurement"]
    ran = bool(runs["any_finished"])
    parity = numbers["parity"]
    hardware = appendix["hardware"]
    licence = appendix["data_licence"]
    return [
        ("Claims match the results", YES if ran else NA,
         "every sentence with a number is chosen by the table of metrics"
         if ran else "no run finished"),
        ("Limitations", YES, "section Limits"),
        ("Theory, assumptions and proofs", NA, "the paper has no theorem"),
        ("Experimental result reproducibility", YES if ran else NA,
         f"{numbers['study']['command']}; equal training in {parity['equal']} of "
         f"{parity['compared']}" if ran and parity["any_compared"] else
         numbers["study"]["command"]),
        ("Open access to data and code", AUTHORS,
         "code and records are one file by make archive; where it is deposited no record tells"),
        ("Experimental setting and details", YES, "section What was run; study.yaml, spec.json"),
        ("Statistical significance", YES if ran else NA,
         f"{measured['percent']} % intervals over repeats; rank-sum test, corrected by Holm"
         if ran else "no run finished"),
        ("Compute resources", YES,
         f"{numbers['environment']['cpu']}, {hardware['memory']}, GPUs "
         f"{numbers['environment']['gpus']}; {appendix['total']} of runs, "
         f"{appendix['profiled'] or 'none'} of profiled runs; runs that were discarded before "
         "leave no record"),
        ("Code of ethics", AUTHORS, "no record tells"),
        ("Broader impacts", AUTHORS, "no record tells"),
        ("Safeguards", AUTHORS, "the study trains for a number of steps and publishes no weights"),
        ("Licences of existing assets", NO if "does not record" in licence else YES,
         f"data: {licence}; code: {appendix['licence']}; packages: sbom.spdx.json"),
        ("New assets", YES, "documented in docs/; records are validated by schemas"),
        ("Crowdsourcing and human subjects", AUTHORS, "no record tells"),
        ("Review board approvals", AUTHORS, "no record tells"),
        ("Use of language models in the research", AUTHORS, "no record tells"),
    ]  # fmt: skip
