# The power supply of one Windows instance: boots it, and boots it again when it ended by a reboot.
# Each boot is a PID name space: all that runs in the instance ends together.
while :; do
    unshare --pid --fork --kill-child --mount --propagation private setarch -R sh /machine/boot.sh
    ended=$?
    [ "$ended" = 133 ] || exit "$ended"
done
