# Runs one Windows program in a booted instance. Arguments: seconds it may take, program, its arguments.
. /machine/env.sh
cd /prefix/drive_c
limit=$1
shift
# Debian's Wine has no preloader: where the kernel lays things out by chance, it may find an address
# taken that it needs, and end without a word.
exec setarch -R timeout --kill-after=5 "$limit" wine64 "$@"
