# What a unit of the machine's systemd runs in the place of a program that runs next to the machine: asks enter.sh to start it, and
# lives and ends with it. Who stops, restarts or kills the unit does that to the program.
set -eu
name=$1
shift
at=/run/evenkeel-testbed/$name
mkdir -p /run/evenkeel-testbed
for pipe in start end; do [ -p "$at.$pipe" ] || mkfifo "$at.$pipe" 2> /dev/null || [ -p "$at.$pipe" ]; done
# Held for as long as the unit runs: whatever ends it ends the program. A signal that can be passed on is.
exec 9> "$at.unit"
flock 9
trap 'echo TERM > "$at.signal"; exec 9>&-' TERM
echo "$*" > "$at.start"
cat "$at.end" > "$at.code" 9>&- &
reader=$!
while kill -0 "$reader" 2> /dev/null; do wait "$reader" || true; done
exit "$(cat "$at.code")"
