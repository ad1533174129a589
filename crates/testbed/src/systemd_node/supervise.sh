# Holds one boot of a node, and every later one: lays its root from the Debian tree and the node's
# own layer, starts it, and starts it again whenever it asked for a reboot. Runs as process 1 of a
# name space of its own, with mounts of its own, so that all of it goes at once and leaves nothing.
set -eu
name=$1 tree=$2 layers=$3 net=$4
shift 4
for cgroup in "$@"; do echo $$ > "$cgroup/cgroup.procs"; done
# Everything is gathered in a memory file system, which then becomes /run: nspawn keeps its locks
# there, and its mount point in /tmp, and neither must be seen outside.
stage=$layers/stage
mkdir -p "$stage"
mount -t tmpfs -o mode=755 tmpfs "$stage"
mkdir -p "$stage/node/tree" "$stage/node/layers" "$stage/node/root"
touch "$stage/node/net"
mount --bind "$net" "$stage/node/net"
lower=tree
if [ -n "${EQUIPMENT:-}" ]; then
    mkdir -p "$stage/node/equipment"
    mount --bind "$EQUIPMENT" "$stage/node/equipment"
    lower=equipment:tree
fi
mount --bind "$tree" "$stage/node/tree"
mount --bind "$layers" "$stage/node/layers"
mount --rbind "$stage" /run
mount -t tmpfs tmpfs /tmp
cd /run/node
mount -t overlay -o nodev,lowerdir=$lower,upperdir=layers/upper,workdir=layers/work overlay root
mount -t proc proc /proc
while :; do
    code=0
    [ -z "${COMPANION:-}" ] || sh -c "$COMPANION" companion &
    # A real machine may change its network, which here is its own; it may not make device files,
    # which here would be the host's.
    systemd-nspawn --quiet --directory=/run/node/root --boot --machine="$name" --hostname="$name" \
        --register=no --keep-unit --console=read-only --network-namespace-path=/run/node/net \
        --capability=CAP_NET_ADMIN --drop-capability=CAP_MKNOD \
        --link-journal=no --resolv-conf=off --timezone=off --setenv=SYSTEMD_COLORS=0 || code=$?
    # What runs with the machine goes down with it. Process 1 itself is spared.
    [ -z "${COMPANION:-}" ] || kill -9 -1 2>/dev/null || true
    # 133 is how a reboot ends it.
    [ "$code" = 133 ] || exit "$code"
    echo "$name reboots"
done
