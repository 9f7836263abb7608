"""Can nodes be emulated on this machine: tried for real, in a process that ends with the trial."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from pipeline.emulation.nodes import PROGRAMS, Nodes, enter_private_network, program
from pipeline.errors import SamestepError
from pipeline.study.spec import LinkSpec

PLAIN = LinkSpec("trial", 1000)
WITH_DELAY = replace(PLAIN, delay_us=1000)


def why_not(link: LinkSpec = PLAIN) -> str | None:
    """None where nodes with this link can be made, else the reason with the fix, in one line."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    absent = [name for name in PROGRAMS if program(name) is None]
    if absent:
        return f"there is no {' and no '.join(absent)}; install iproute2"
    if (reason := _try(PLAIN)) is not None:
        return reason
    if link.delay_us and (reason := _try(link)) is not None:
        return (
            f"a delay needs the kernel's module sch_netem, without it leave out delay_us ({reason})"
        )
    return None


def _try(link: LinkSpec) -> str | None:
    """Make one node with the link in a child process; the reason why it could not."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            enter_private_network()
            Nodes(1, 1, link, 1.0).enter(0, 0)
        except (SamestepError, OSError) as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as stream:
        reason = stream.read()
    os.waitpid(child, 0)
    return reason or None
