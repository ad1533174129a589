# Makes the prefix that all Windows instances are layers over. Arguments: where to put it, the library
# that Wine lacks, the text of env.sh. Runs in name spaces of its own.
set -eu
mkdir -p "$1"
mount --bind "$1" /mnt
cp "$2" /mnt/bcryptprimitives.dll
# Wine's sockets and links to the user's home must not lead to this machine's.
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /root
hostname template
eval "$3"
export WINEPREFIX=/mnt WINEDLLOVERRIDES='mscoree,mshtml,winemenubuilder.exe='
wine64 wineboot -i
system=/mnt/drive_c/windows/system32
mv /mnt/bcryptprimitives.dll "$system/"
wine64 winecfg -v win10
wineserver -w
# Under another name, and without the mark by which Wine looks for the name among its own programs.
[ "$(dd if="$system/wineboot.exe" bs=1 skip=64 count=16 status=none)" = 'Wine builtin DLL' ]
cp "$system/wineboot.exe" "$system/wineboot-wine.exe"
dd if=/dev/zero of="$system/wineboot-wine.exe" bs=1 seek=64 count=16 conv=notrunc status=none
