# Runs in the machine's mounts: makes them what a container runtime needs, then starts it, and the kubelet.
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
containerd --config /etc/kubernetes/containerd.toml >> /var/log/kubernetes/containerd.log 2>&1 &
until ctr --address /run/containerd/containerd.sock version > /dev/null 2>&1; do sleep 0.1; done
for image in /var/lib/images/*.tar; do
    [ -e "$image" ] || continue
    ctr --address /run/containerd/containerd.sock --namespace k8s.io images import --snapshotter native "$image" >> /var/log/kubernetes/images.log 2>&1
done
while :; do
    kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.kubeconfig \
        --hostname-override="$(cat /etc/hostname)" --node-ip="$(cat /etc/kubernetes/address)" >> /var/log/kubernetes/kubelet.log 2>&1 || true
    sleep 1
done
