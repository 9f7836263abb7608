"""Documents that reviewers of an artifact ask for: `python -m pipeline artifact`.

Flow, in `build`: the paper's facts (`pipeline.paper.numbers`), command, time, memory and disk of
each claim, and `badges` (what one of the ACM still lacks) -> `artifact.md.j2`, which also answers
the checklist of NeurIPS; and the lock -> `sbom`, an SPDX 2.3 document.
"""
