# The file systems of one Windows instance, as its own mount name space sees them; held for as long
# as this runs. Arguments: the instance's folder, the template prefix.
#
# Only what Wine and sshd need of this machine is there, its programs read-only. The prefix is at
# /prefix; its drive C: is also at `/C:`, which is where SFTP on Windows has it. `/root`, `/run` and
# `/tmp` are the instance's own: no link out of the prefix leads to this machine's.
set -eu
folder=$1 template=$2
root=$folder/root
mkdir "$root" "$folder/prefix" "$folder/prefix/drive_c" "$folder/upper" "$folder/work"
find "$template" -mindepth 1 -maxdepth 1 ! -name drive_c -exec cp -a -t "$folder/prefix" {} +
# A copy is 700 MB; a layer over the template is none. Some file systems carry no layers.
mount -t overlay overlay "$folder/prefix/drive_c" \
    -o "lowerdir=$template/drive_c,upperdir=$folder/upper,workdir=$folder/work" 2>/dev/null ||
    cp -a --reflink=auto -T "$template/drive_c" "$folder/prefix/drive_c"
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir -p C: dev etc/ssl etc/fonts machine old prefix proc root run/sshd sys var/empty
mkdir -m 1777 tmp
for each in bin lib lib32 lib64 libx32 sbin usr; do
    if [ -L "/$each" ]; then
        cp -a "/$each" .
    elif [ -d "/$each" ]; then
        mkdir "$each"
        mount --bind -o ro "/$each" "$each"
    fi
done
for each in dev proc sys; do
    mount --rbind "/$each" "$each"
done
for each in ssl fonts; do
    [ ! -d "/etc/$each" ] || mount --bind -o ro "/etc/$each" "etc/$each"
done
[ ! -e /etc/ld.so.cache ] || cp /etc/ld.so.cache etc/
mount --bind "$folder/machine" machine
mount --rbind "$folder/prefix" prefix
mount --bind "$folder/prefix/drive_c" C:
ln -s /machine/hosts /machine/nsswitch.conf /machine/passwd etc/
mkfifo run/power
pivot_root . old
cd /
umount -l old
rmdir old
echo mounted
exec sleep infinity
