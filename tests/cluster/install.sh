#!/bin/sh
# Install the Debian packages of the lists named as arguments (default: packages.txt), if anything is missing.
#
# Quick when nothing is. Never fails hard: where it cannot install (not root, no
# apt-get, no network) it says what is missing, and the tests then skip with the
# same reason, or fail when CI=true.
set -u
here=$(dirname -- "$0")
[ $# -gt 0 ] || set -- "$here/packages.txt"
lists=$*

missing() { # the packages of one kind ("needed" or "optional") not installed yet
    # shellcheck disable=SC2086  # a list of files
    sed -e 's/#.*//' $lists | while read -r first second; do
        [ -n "$first" ] || continue
        if [ "$first" = optional ]; then kind=optional name=$second; else kind=needed name=$first; fi
        [ "$kind" = "$1" ] || continue
        state=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) || state=absent
        [ "$state" = installed ] || echo "$name"
    done
}

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "virtual cluster: not a Debian system; install the counterparts of $lists"
    exit 0
fi
needed=$(missing needed | tr '\n' ' ')
optional=$(missing optional | tr '\n' ' ')
[ -n "$needed$optional" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    [ -z "$needed" ] || echo "virtual cluster: missing packages: $needed(run as root: sh $0 $lists)"
    [ -z "$optional" ] || echo "virtual cluster: missing optional packages: $optional"
    exit 0
fi

# Installing openssh-server must not start an sshd on this machine: the nodes
# run their own. A policy that somebody else has put there is left as it is.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt_install() {
    apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends "$@" >/dev/null
}
# The package lists may be absent or stale: try first, refresh only then.
for packages in "$needed" "$optional"; do
    [ -n "$packages" ] || continue
    # shellcheck disable=SC2086  # a list of words
    apt_install $packages 2>/dev/null ||
        { apt-get -q update >/dev/null && apt_install $packages; } ||
        echo "virtual cluster: could not install: $packages"
done
exit 0
