#!/bin/sh
# Two nodes, each a network namespace with one address, where no node reaches the other's loopback.
#
#   unshare --user --map-root-user --net --mount sh two_nodes.sh PYTHON WORKER OUT [arguments]
#
# The namespaces end with the process. Needs `ip` (Debian package iproute2), no root.
set -eu

python=$1
worker=$2
out=$3
shift 3

mount -t tmpfs tmpfs /run
mkdir -p /run/netns
ip link set lo up
ip link add bridge0 type bridge
ip link set bridge0 up
for node in 1 2; do
    ip netns add "node$node"
    ip link add "port$node" type veth peer name eth0 netns "node$node"
    ip link set "port$node" master bridge0 up
    ip -n "node$node" link set lo up
    ip -n "node$node" addr add "10.77.0.$node/24" dev eth0
    ip -n "node$node" link set eth0 up
done
sleep 1

pids=""
for node in 1 2; do
    ip netns exec "node$node" "$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 1 \
        --node-rank "$((node - 1))" --master-addr 10.77.0.1 --master-port 29500 \
        "$worker" "$out" "$@" &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done
