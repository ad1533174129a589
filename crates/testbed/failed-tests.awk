# What failed in the output of `cargo test --no-fail-fast`, and the command that runs each of them alone.
#
# Cargo names the targets that failed at its end, in the order in which it ran them; the tests stand before that, below
# the target that they belong to.
/^ *(Running|Doc-tests) / { section++; next }
/^test .* \.\.\. FAILED$/ { sub(/^test /, ""); sub(/ \.\.\. FAILED$/, ""); failed[section] = failed[section] "\n" $0; next }
# One that was killed, or did not end by itself, has no list.
/^error: test failed, to rerun pass `/ { broken[section] = 1; next }
/^error: [0-9]+ targets? failed:$/ { named = 1; next }
named && /^ +`.*`$/ { gsub(/^ +`|`$/, ""); target[++targets] = $0 }
END {
    for (at = 1; at <= section; at++) {
        if (!(at in failed) && !(at in broken)) continue
        command = "cargo test " target[++used]
        if (!(at in failed)) { print command "   (it ended before its tests did)"; continue }
        count = split(substr(failed[at], 2), names, "\n")
        for (one = 1; one <= count; one++) print command " -- --exact " names[one]
    }
    # Whatever could not be told apart is named all the same.
    while (used < targets) print "cargo test " target[++used]
}
