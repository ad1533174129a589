# Clears away what a test process left behind. Standard input is a pipe from that process: each line
# says what it started or took down, and the end of input says that it is gone, however it went.
trap '' INT TERM HUP
processes= mounts= cgroups= folders=
drop() { # drop ITEM FROM...: the list without ITEM
    item=$1; shift
    for each in "$@"; do [ "$each" = "$item" ] || printf '%s ' "$each"; done
}
while read -r what item; do
    case $what in
        process) processes="$item $processes" ;;
        ended) processes=$(drop "$item" $processes) ;;
        mount) mounts="$item $mounts" ;;
        unmounted) mounts=$(drop "$item" $mounts) ;;
        cgroup) cgroups="$item $cgroups" ;;
        vacated) cgroups=$(drop "$item" $cgroups) ;;
        folder) folders="$item $folders" ;;
        removed) folders=$(drop "$item" $folders) ;;
    esac
done
# An item is PID:START; the start time tells a process from a later one with the same number.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }
for each in $processes; do
    pid=${each%%:*}
    if [ "$(started "$pid")" = "${each##*:}" ]; then
        kill -s KILL -- "-$pid" 2>/dev/null
        kill -s KILL "$pid" 2>/dev/null
    fi
done
for each in $mounts; do umount -R -l "$each" 2>/dev/null; done
# What was killed takes a moment to go, and holds its control group and folder until then.
again() { # again COMMAND...: until it succeeds, for ten seconds
    tries=100
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 0
        sleep 0.1
    done
}
vacate() { find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; [ ! -e "$1" ]; }
remove() { rm -rf --one-file-system "$1" 2>/dev/null; [ ! -e "$1" ]; }
for each in $cgroups; do
    case $each in
        */evenkeel-testbed-*) again vacate "$each" ;;
    esac
done
for each in $folders; do
    case $each in
        */evenkeel-testbed-*) again remove "$each" ;;
    esac
done
