#!/bin/sh
# First process of one virtual node: PID 1 of its own namespaces (see fabric.sh).
#
# Arguments: NAME KIND INDEX DATA_ADDRESS MANAGEMENT_ADDRESS MTU PREFIX_LENGTH
#            LIBRARY_FOLDER SHM_BYTES [SHARED_PATH...]
# KIND is "node" or "head"; a head has no sshd and keeps the machine's own /tmp.
set -eu
name=$1 kind=$2 index=$3 data=$4 management=$5 mtu=$6 prefix=$7 libraries=$8 shm=$9
shift 9
trap 'echo "failed $name"' EXIT
state=/run/cluster/nodes/$name
read -r host_pid _ </proc/self/stat # the owner's /proc until the last mount below
echo "$name" >/proc/sys/kernel/hostname

# No link-local IPv6 addresses: no waiting for duplicate address detection, and
# one address per interface.
if [ -w /proc/sys/net/ipv6/conf/default/addr_gen_mode ]; then
    echo 1 >/proc/sys/net/ipv6/conf/default/addr_gen_mode
fi
# Distributions differ here, and 1 would let a sender recover from a black hole.
echo 0 >/proc/sys/net/ipv4/tcp_mtu_probing

# Both pairs are born with one end in the fabric and one here: never on the machine.
exec 3</proc/self/ns/net
nsenter --net="/proc/$FABRIC_PID/ns/net" ip -batch - <<END
link add data-$index mtu $mtu type veth peer name eth0 mtu $mtu netns /proc/self/fd/3
link add mgmt-$index mtu $mtu type veth peer name eth1 mtu $mtu netns /proc/self/fd/3
link set data-$index master data up
link set mgmt-$index master mgmt up
END
exec 3<&-
# Without delayed acknowledgements a whole ssh takes 50 ms here and not 130.
ip -batch - <<END
link set lo up
addr add $data/$prefix dev eth0
addr add $management/$prefix dev eth1
link set eth0 up
link set eth1 up
route change ${data%.*.*}.0.0/$prefix dev eth0 proto kernel scope link src $data quickack 1
route change ${management%.*.*}.0.0/$prefix dev eth1 proto kernel scope link src $management quickack 1
END

# What the machine has under /etc, with our own files in front of it.
mount -t overlay -o "lowerdir=/etc,upperdir=$state/etc,workdir=$state/work" etc /etc

# Paths to keep that the new /tmp or /srv would cover.
kept=0
for path in "$@"; do
    mkdir -p "$state/kept/$kept"
    mount --rbind "$path" "$state/kept/$kept"
    kept=$((kept + 1))
done
if [ "$kind" = node ]; then mount -t tmpfs -o mode=1777 tmp /tmp; fi
mount -t tmpfs -o "mode=1777,size=$shm" shm /dev/shm
mount -t tmpfs -o mode=755 srv /srv
mkdir /srv/data
kept=0
for path in "$@"; do
    mkdir -p "$path"
    mount --move "$state/kept/$kept" "$path"
    kept=$((kept + 1))
done

# The library folder, read-only, with the stubs (links into /run) in front of it.
if [ "$kind" = node ] && [ "$libraries" != - ]; then
    mkdir "$state/stub"
    ln -s /run/libnvidia-ml.so.1 "$state/stub/libnvidia-ml.so.1"
    ln -s /run/libcuda.so.1 "$state/stub/libcuda.so.1"
    mount -t overlay -o "ro,lowerdir=$state/stub:$libraries" libraries "$libraries"
fi

# /sys shows the interfaces of the namespace that mounted it.
mkdir "$state/sys"
mount -t sysfs sysfs "$state/sys"
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$state/sys/fs/cgroup"; fi
mount --rbind "$state/sys" /sys
mount --rbind "$state/run" /run
mount -t proc proc /proc

if [ "$kind" = node ]; then
    /usr/sbin/sshd -f /etc/ssh/sshd_config -E /run/sshd.log
    tries=500
    until [ -s /run/sshd.pid ]; do # written once it listens
        tries=$((tries - 1))
        [ $tries -gt 0 ]
        sleep 0.01
    done
fi
echo "up $name $host_pid"
trap '' CHLD # as in fabric.sh
cd /
exec sleep infinity </dev/null >/dev/null 2>&1
