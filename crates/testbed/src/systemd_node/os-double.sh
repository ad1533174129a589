#!/bin/sh
# Stands in for rpm-ostree, bootc and ostree on a node, under whichever of these names it is called.
# It keeps deployments as they do: what is staged is in /run and is lost with the power; an orderly
# shutdown makes it the default, which the next boot brings, with its arguments in /proc/cmdline.
# /var/lib/os-double/fail has the commands that fail ("rpm-ostree rebase"), one a line; with a file
# /var/lib/os-double/stubborn every boot brings the deployment before. What it does not know it refuses.
set -eu
kept=/var/lib/os-double now=/run/os-double name=${0##*/}
registry=ostree-unverified-registry:

die() { echo "error: $*" >&2; exit 1; }
there() { [ -e "$1.image" ]; }
copy() { cp "$1.image" "$2.image" && cp "$1.arguments" "$2.arguments"; }
next() { if there $now/staged; then echo $now/staged; else echo $kept/default; fi; }
image() { cat "$1.image"; }
arguments() { tr '\n' ' ' < "$1.arguments"; }
# Makes $now/new out of the next deployment; `stage` makes it the staged one in one go.
begin() { copy "$(next)" $now/new; }
stage() { mv $now/new.arguments $now/staged.arguments && mv $now/new.image $now/staged.image; }
unstage() { rm -f $now/staged.image $now/staged.arguments; }
same() { cmp -s "$1.image" "$2.image" && cmp -s "$1.arguments" "$2.arguments"; }

echo "$name $*" >> $kept/calls
if [ -e $kept/fail ] && grep -qx "$name ${1:-}" $kept/fail; then
    echo "pulling manifest" >&2
    die "$name ${1:-} was told to fail"
fi

deployment() { # booted staged place
    printf '{"booted":%s,"staged":%s,"container-image-reference":"%s%s"}' "$1" "$2" $registry "$(image "$3")"
}
entry() { # place
    printf '{"image":{"image":{"image":"%s","transport":"registry"},"imageDigest":"sha256:0"}}' "$(image "$1")"
}

case "$name $*" in
"os-double boot")
    mkdir -p $now
    if [ -e $kept/stubborn ] && there $kept/previous; then copy $kept/previous $now/booted; else copy $kept/default $now/booted; fi
    echo "BOOT_IMAGE=(hd0)/vmlinuz ostree=/ostree/boot.1/0 $(arguments $now/booted)" > $now/cmdline
    mount --bind $now/cmdline /proc/cmdline
    ;;
"os-double finalize")
    if there $now/staged; then
        copy $now/booted $kept/previous
        copy $now/staged $kept/default
        sync
    fi
    ;;
"rpm-ostree status --json")
    printf '{"deployments":['
    if there $now/staged; then deployment false true $now/staged; printf ,; fi
    if ! same $kept/default $now/booted; then deployment false false $kept/default; printf ,; fi
    deployment true false $now/booted
    printf '],"transaction":null}\n'
    ;;
"rpm-ostree rebase $registry"?*)
    [ $# = 2 ] || die "Unknown option: $*"
    new=${2#"$registry"}
    [ "$new" != "$(image "$(next)")" ] || die "Old and new refs are equal: $2"
    begin
    echo "$new" > $now/new.image
    stage
    ;;
"rpm-ostree kargs")
    echo "$(arguments "$(next)")ostree=/ostree/boot.1/0"
    ;;
"rpm-ostree kargs "*)
    shift
    begin
    for edit; do
        argument=${edit#*=}
        case $edit in
        --append=?*) echo "$argument" >> $now/new.arguments ;;
        --delete=?*)
            line=$(grep -nxF -- "$argument" $now/new.arguments | head -n 1 | cut -d : -f 1)
            [ -n "$line" ] || die "No karg '$argument' found"
            sed -i "${line}d" $now/new.arguments
            ;;
        *) die "Unknown option $edit" ;;
        esac
    done
    stage
    ;;
"rpm-ostree cleanup --pending")
    unstage
    ;;
"bootc status --format json")
    staged=null
    if there $now/staged; then staged=$(entry $now/staged); fi
    printf '{"apiVersion":"org.containers.bootc/v1","kind":"BootcHost","status":{"staged":%s,"booted":%s,"rollback":null,"rollbackQueued":false,"type":"bootcHost"}}\n' \
        "$staged" "$(entry $now/booted)"
    ;;
"bootc switch -- "?*)
    [ $# = 3 ] || die "unexpected argument"
    if [ "$3" = "$(image "$(next)")" ]; then echo "Image specification is unchanged."; exit 0; fi
    begin
    echo "$3" > $now/new.image
    stage
    ;;
"ostree admin undeploy 0")
    there $now/staged || die "Cannot undeploy currently booted deployment 0"
    unstage
    ;;
*)
    die "Unknown command: $name $*"
    ;;
esac
