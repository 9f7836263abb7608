"""What reviewers of an artifact ask for: `python -m pipeline artifact`.

Flow, in `build`: the paper's facts (`pipeline.paper.numbers`) -> `experiments` (command, time,
memory and disk for each claim), `badges` (what one of the ACM still lacks), `checklist` (answers to
that of NeurIPS) -> `artifact.md.j2`; and the lock -> `sbom`, an SPDX 2.3 document.
"""
