"""What `test_debian_kernel` asks of Debian's kernel; runs in the guest and prints JSON lines.

python -m tests.system.in_debian_vm namespaces
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

DELAY_US = 200_000
PORT = 7000


def namespaces() -> dict[str, Any]:
    """Two nodes over a link with a delay: a message there and back again."""
    from pipeline.emulation import links
    from pipeline.emulation.nodes import WITH_DELAY, Nodes, enter_private_network, why_not
    from pipeline.study.link import LinkSpec

    reason = why_not(WITH_DELAY)
    if reason is not None:
        return {"reason": reason}
    enter_private_network()
    nodes = Nodes(2, 1, LinkSpec("slow", 100, DELAY_US), 1.0)
    child = os.fork()
    if child == 0:
        nodes.enter(0, 1)
        with socket.create_server((links.address(0, 1), PORT)) as server:
            connection, _ = server.accept()
            connection.sendall(connection.recv(16))
            connection.recv(16)
        os._exit(0)
    nodes.enter(0, 0)
    connection = _connect(links.address(0, 1))
    start = time.perf_counter()
    connection.sendall(b"there and back")
    answer = connection.recv(16)
    seconds = time.perf_counter() - start
    connection.close()
    os.waitpid(child, 0)
    return {"reason": None, "user": os.getuid(), "answer": answer.decode(), "seconds": seconds}


def _connect(host: str) -> socket.socket:
    for _ in range(100):
        try:
            return socket.create_connection((host, PORT), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError("nobody listens")


def _say(name: str, found: Any) -> None:
    print("\n" + json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    _say(sys.argv[1], {"namespaces": namespaces}[sys.argv[1]]())
