#!/bin/sh
# First process of a virtual cluster: holds the two networks and starts the nodes.
#
# Runs as PID 1 of its own pid, net, mount, uts and ipc namespaces, so that its
# end is the end of everything below it. Speaks with its owner over two pipes:
#   stdout  fabric HOST_PID          ready for the nodes' files
#   stdin   NAME KIND INDEX DATA_ADDRESS MANAGEMENT_ADDRESS   one line a node, then "."
#   stdout  up NAME HOST_PID | failed NAME
# After that it waits for the end of stdin, which is the end of the owner.
#
# Arguments: MTU PREFIX_LENGTH LIBRARY_FOLDER SHM_BYTES [SHARED_PATH...]
# (LIBRARY_FOLDER is "-" without GPUs)
set -eu
here=$(dirname -- "$0")
read -r FABRIC_PID _ </proc/self/stat # /proc is still the owner's: this is the pid as the owner sees it
export FABRIC_PID
mtu=$1

# State lives in memory, so that a killed owner leaves no file behind.
mount -t tmpfs -o mode=755 cluster /run
mkdir -p /run/cluster/nodes /run/cluster/keys
for key in host user; do
    ssh-keygen -q -t ed25519 -N '' -C "virtual cluster" -f /run/cluster/keys/$key
done

if [ -w /proc/sys/net/ipv6/conf/default/disable_ipv6 ]; then
    echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
fi
ip -batch - <<END
link set lo up
link add data mtu $mtu type bridge mcast_snooping 0
link add mgmt mtu $mtu type bridge mcast_snooping 0
link set data up
link set mgmt up
END

echo "fabric $FABRIC_PID"
while read -r name kind index data management; do
    [ "$name" != . ] || break
    unshare --net --uts --ipc --mount --pid --fork --kill-child -- \
        sh "$here/node.sh" "$name" "$kind" "$index" "$data" "$management" "$@" &
done

trap '' CHLD # an ignored SIGCHLD survives exec and makes the kernel reap orphans
exec cat >/dev/null
