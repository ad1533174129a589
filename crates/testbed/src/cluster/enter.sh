# Runs in the machine's mounts: makes them what a container runtime needs, then runs it, and the kubelet, for units of the machine.
set -eu
mount --make-rslave /
# The machine's own boot is not the kernel's.
cat /proc/sys/kernel/random/boot_id > /run/boot_id
# umount itself reads /proc, and complains once it is gone.
umount --lazy /proc 2> /dev/null || true
mount -t proc proc /proc
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
# nspawn lends a part of these; a runtime wants the whole, which here is what belongs to this machine.
umount --lazy /sys/fs/cgroup || true
mount -t tmpfs tmpfs /sys/fs/cgroup
while read -r controller _ _ enabled; do
    case $controller in '#'*) continue ;; esac
    [ "$enabled" = 1 ] || continue
    mkdir -p "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" 2>/dev/null || rmdir "/sys/fs/cgroup/$controller"
done < /proc/cgroups
[ -e /dev/kmsg ] || mknod /dev/kmsg c 1 11
mount --make-rshared /
mkdir -p /var/log/kubernetes /etc/kubernetes/manifests
# Runs here what a unit of the machine asks for (unit.sh), for as long as that unit runs.
serve() {
    name=$1 at=/run/evenkeel-testbed/$1
    for pipe in start end; do [ -p "$at.$pipe" ] || mkfifo "$at.$pipe" 2> /dev/null || [ -p "$at.$pipe" ]; done
    while :; do
        read -r command < "$at.start" || continue
        rm -f "$at.signal"
        sh -c "exec $command" >> "/var/log/kubernetes/$name.log" 2>&1 &
        program=$!
        (
            flock 9
            kill -s "$(cat "$at.signal" 2> /dev/null || echo KILL)" "$program"
        ) 9>> "$at.unit" &
        watcher=$!
        code=0
        wait "$program" || code=$?
        kill "$watcher" 2> /dev/null || true
        # Nobody reads it any more if the unit was killed.
        echo "$code" | timeout 1 tee "$at.end" > /dev/null || true
    done
}
mkdir -p /run/evenkeel-testbed
serve containerd &
until ctr --address /run/containerd/containerd.sock version > /dev/null 2>&1; do sleep 0.1; done
for image in /var/lib/images/*.tar; do
    [ -e "$image" ] || continue
    ctr --address /run/containerd/containerd.sock --namespace k8s.io images import --snapshotter native "$image" >> /var/log/kubernetes/images.log 2>&1
done
serve kubelet
