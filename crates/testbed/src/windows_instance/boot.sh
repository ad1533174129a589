# Process 1 of one boot of a Windows instance: starts Wine and sshd, then waits for a line at the
# power switch, `reboot` or `off`. Ends with 133 for a reboot, as a container does.
set -eu
# This machine's /proc is still there: it knows the number by which this machine sees us.
read -r pid rest </proc/self/stat
boot=$(cat /proc/sys/kernel/random/uuid)
mount -t proc proc /proc
. /machine/env.sh
rm -rf /tmp/.wine-* /run/boot
echo "$boot" >/run/boot-id
cd /prefix/drive_c
# Without it Wine ends all services soon after the last ordinary program.
wineserver -p
# The first program starts the service manager, and that the automatic services. What the manager is asked for and
# cannot do (failure actions) it says to whoever reads the log of the power supply.
WINEDEBUG=-all,fixme+service wine64 cmd /c exit 0
/usr/sbin/sshd -D -e -f /machine/sshd_config &
echo "$boot $pid" >/run/boot.partial
mv /run/boot.partial /run/boot
# Waiting, unlike reading, also buries the orphans that process 1 inherits.
{
    until read -r request </run/power; do :; done
    echo "$request" >/run/request
} &
wait $!
read -r request </run/request
# As on a real reboot, what the registry has not written yet is written now.
wineserver -k || :
timeout 20 wineserver -w || :
rm /run/boot
[ "$request" = reboot ] || exit 0
exit 133
