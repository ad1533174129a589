# Runs one Windows program in a booted instance. Arguments: seconds it may take, program, its arguments.
. /machine/env.sh
cd /prefix/drive_c
limit=$1
shift
exec timeout --kill-after=5 "$limit" wine64 "$@"
