# Clears away what a test process left behind. Standard input is a pipe from that process: each line
# says what it started or took down, and the end of input says that it is gone, however it went.
trap '' INT TERM HUP
processes= mounts= folders=
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
for each in $folders; do
    case $each in
        */evenkeel-testbed-*) rm -rf --one-file-system "$each" ;;
    esac
done
