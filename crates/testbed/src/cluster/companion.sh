# Starts what makes a systemd machine a node of a cluster, as soon as the machine is up: container runtime and kubelet, with
# the machine's files and network, and with the processes of the name space that all of the machine runs in.
set -u
for cgroup in $CONTROLLERS; do echo $$ > "$cgroup/cgroup.procs"; done
while :; do
    init=
    for process in /proc/[0-9]*; do
        [ "$(cat "$process/comm" 2>/dev/null)" = systemd ] && init=${process#/proc/} && break
    done
    if [ -n "$init" ]; then
        case $(nsenter --all --target "$init" -- systemctl is-system-running 2>/dev/null) in
            running | degraded) break ;;
        esac
    fi
    sleep 0.2
done
exec nsenter --mount --net --uts --ipc --target "$init" -- unshare --mount --cgroup sh /usr/local/lib/evenkeel-testbed/enter.sh
