"""Nodes of a cluster on one machine: a network each, links of a stated rate, dilated time.

Each node is a network namespace on a bridge (`nodes`), each of its directions shaped to the rate of
the study (`links`). Where the nodes need more cores than there are, time is dilated (`dilation`,
after Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006): every link
is slowed by the factor, measured times are divided by it, and each rank waits until its time is the
factor x its own CPU seconds (`pacing`, in which what spins elsewhere sleeps), on the cores of its
node, which are kept from halting. What a node really got is measured before the training
(`measured`, by `probes`).

Nothing here knows of training; `pipeline.launch.emulated.build` starts the ranks in these nodes.
"""

REPORT = "emulation.json"
"""Measurements of the nodes, in the folder of the ranks' files."""

NOTE = "note.txt"
"""Reason why the nodes wait before the training, beside it."""
