"""Horovod among ranks that torchrun started: joining its job.

torchrun knows nothing of Horovod, and `hvd.init()` alone would quietly make each rank a job of
size 1. So rank 0 starts Horovod's own rendezvous server, tells the others its address through the
store that torchrun already runs, and every rank sets the documented `HOROVOD_*` variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from pipeline.emulation import pacing
from pipeline.errors import LaunchError
from pipeline.machine import addresses
from pipeline.parallel.mesh import Layout

HOST = "node{}"
"""Name of a node: several may share one machine, whose own name does not tell them apart."""


def join(layout: Layout, settings: Mapping[str, str], store: Store | None = None) -> None:
    """Initialise Horovod with `settings`; raises LaunchError unless all ranks came up as one.

    They meet at `store`, else at torchrun's.

    A process joins once: Horovod 0.28 can crash when it is initialised again after a shutdown. So a
    later `join` finds the job as it is, and Horovod's own exit handler shuts it down. Collective.
    """
    import horovod.torch as hvd

    if hvd.is_initialized():
        for key, value in settings.items():
            if os.environ.get(key) != value:
                raise LaunchError(
                    f"Horovod runs in this process with {key}={os.environ.get(key)}, given "
                    f"{value}; start another process, Horovod reads it once"
                )
    else:
        # Patience of a collective: the default of 30 s is less than several ranks on few cores take
        # to start.
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "300")
        os.environ.update(settings)
        os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
        if layout.num_processes > 1:
            # Where rank 0 serves it, others may read it until all are in Horovod's job.
            if store is None:
                store, _, _ = next(iter(rendezvous("env://")))
            os.environ.update(_meet(store))
        hvd.init()
        del store  # with the thread that serves it
        pacing.find_spinning()
    if hvd.size() != layout.num_processes:
        raise LaunchError(
            f"Horovod came up with {hvd.size()} ranks, the spec says "
            f"{layout.num_processes}; check nodes and ranks_per_node against the launcher"
        )


def wait_asleep(handles: Iterable[int | None]) -> None:
    """Wait for these collectives without keeping the core busy, where nodes are emulated.

    Horovod's own wait spins, which on a shared core takes the time of the node that it waits for.
    Elsewhere this returns at once.
    """
    import horovod.torch as hvd

    for handle in handles:
        if handle is not None:
            pacing.asleep(partial(hvd.poll, handle))


def _meet(launcher_store: Store) -> dict[str, str]:
    """Agree through the launcher's store on a rendezvous server, a thread of rank 0."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    store = PrefixStore("samestep/horovod", launcher_store)
    address = _own_address(store, rank, size)
    if rank == 0:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer

        # Of more than five who call at once the kernel drops one, which then waits for a second.
        RendezvousHTTPServer.request_queue_size = 1024
        hosts = ",".join(f"{HOST.format(node)}:{local_size}" for node in range(size // local_size))
        server = RendezvousServer()
        port = server.start()
        server.init(get_host_assignments(parse_hosts(hosts), size))
        store.set("server", f"{address} {port}")
    # `get` waits until a rank has written the value.
    server_address, server_port = store.get("server").decode().split()
    variables = {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": local_rank,
        "HOROVOD_LOCAL_SIZE": local_size,
        "HOROVOD_CROSS_RANK": rank // local_size,
        "HOROVOD_CROSS_SIZE": size // local_size,
        "HOROVOD_HOSTNAME": HOST.format(rank // local_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server_address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": server_port,
        "HOROVOD_GLOO_IFACE": _interface(address),
    }
    return {key: str(value) for key, value in variables.items()}


def _own_address(store: PrefixStore, rank: int, size: int) -> str:
    """The address of this rank that the others reach.

    It is the source address of the way to MASTER_ADDR. On the master's own node that way may lead
    over the loopback; then the way to a rank elsewhere decides.
    """
    own = addresses.source_address(os.environ["MASTER_ADDR"])
    store.set(f"address{rank}", own)
    all_addresses = [store.get(f"address{other}").decode() for other in range(size)]
    elsewhere = [address for address in all_addresses if not addresses.is_loopback(address)]
    if addresses.is_loopback(own) and elsewhere:
        return addresses.source_address(elsewhere[0])
    return own


def _interface(address: str) -> str:
    """Network interface for Horovod's Gloo: as torch's Gloo was told, else the address's own."""
    for name in ("HOROVOD_GLOO_IFACE", addresses.INTERFACE):
        if os.environ.get(name):
            return os.environ[name]
    return addresses.interface_of(address)
