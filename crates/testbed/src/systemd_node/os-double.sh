#!/bin/sh
# Stands in for rpm-ostree, bootc and ostree on a node, under whichever of these names it is called.
# It keeps deployments as they do: what is staged is in /run and is lost with the power; an orderly
# shutdown makes it the default, which the next boot brings, with its arguments in /proc/cmdline.
# /var/lib/os-double/fail has the commands that fail ("rpm-ostree rebase"), one a line; with a file
# /var/lib/os-double/stubborn every boot brings the deployment before. With a file hold, pulling an image takes until it is
# gone; login has words that the logins for registries must have; driver has the name and the unit of a program that drives
# updates; with busy another transaction runs. What it does not know it refuses.
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

# What changes the system says where it runs, and what proxy it sees.
changes() {
    echo "$name $1: $(head -n 1 /proc/self/cgroup | cut -d : -f 3) proxy=${https_proxy:-}" >> $kept/changes
    [ ! -e $kept/busy ] || die "Transaction in progress: upgrade"
}
pulls() { # reference
    if [ -e $kept/login ] && ! cat /etc/ostree/auth.json /run/ostree/auth.json 2>/dev/null | grep -qFf $kept/login; then
        die "reading manifest of $1: authentication required"
    fi
    while [ -e $kept/hold ]; do sleep 0.1; done
}
# What of /etc is as the image that is booted has it becomes as the next image has it; what somebody changed stays.
# A line of the file etc is an image, a path, and what it holds there.
merge() {
    [ -e $kept/etc ] || return 0
    while read -r image path text; do
        [ "$image" = "$(image $now/staged)" ] || continue
        before=$(sed -n "s|^$(image $now/booted) $path ||p" $kept/etc)
        if [ "$(cat "$path" 2>/dev/null)" = "$before" ]; then echo "$text" > "$path"; fi
    done < $kept/etc
}
drives() { # whether another program drives updates
    [ -e $kept/driver ] && systemctl is-active --quiet "$(cut -d ' ' -f 2 $kept/driver)"
}

deployment() { # booted staged place
    case $(image "$3") in ostree-*) form= ;; *) form=$registry ;; esac
    printf '{"booted":%s,"staged":%s,"container-image-reference":"%s%s"}' "$1" "$2" "$form" "$(image "$3")"
}
entry() { # place
    plain=$(image "$1")
    plain=${plain#ostree-image-signed:docker://}
    printf '{"image":{"image":{"image":"%s","transport":"registry"},"imageDigest":"sha256:0"}}' "$plain"
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
        merge
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
    printf '],"transaction":null'
    if [ -e $kept/driver ]; then
        read -r driver unit < $kept/driver
        printf ',"update-driver":{"driver-name":"%s","driver-sd-unit":"%s"}' "$driver" "$unit"
    fi
    echo '}'
    ;;
"rpm-ostree rebase "?*)
    changes rebase
    shift
    if [ "$1" = --bypass-driver ]; then
        shift
    elif drives; then
        die "Updates and deployments are driven by $(cut -d ' ' -f 1 $kept/driver)"
    fi
    [ $# = 1 ] || die "Unknown option: $*"
    case $1 in
    "$registry"docker:* | "$registry"ostree-*) die "Invalid image reference $1" ;;
    "$registry"?* | ostree-image-signed:docker://?* | ostree-image-signed:registry:?* | ostree-remote-*:?*) ;;
    *) die "Unknown ref $1" ;;
    esac
    new=${1#"$registry"}
    pulls "$new"
    [ "$new" != "$(image "$(next)")" ] || die "Old and new refs are equal: $1"
    begin
    echo "$new" > $now/new.image
    stage
    ;;
"rpm-ostree kargs")
    echo "$(arguments "$(next)")ostree=/ostree/boot.1/0"
    ;;
"rpm-ostree kargs "*)
    changes kargs
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
    changes cleanup
    unstage
    ;;
"bootc status --format json")
    staged=null
    if there $now/staged; then staged=$(entry $now/staged); fi
    printf '{"apiVersion":"org.containers.bootc/v1","kind":"BootcHost","status":{"staged":%s,"booted":%s,"rollback":null,"rollbackQueued":false,"type":"bootcHost"}}\n' \
        "$staged" "$(entry $now/booted)"
    ;;
"bootc switch -- "?* | "bootc switch --enforce-container-sigpolicy -- "?*)
    changes switch
    shift
    signed=
    if [ "$1" != -- ]; then signed=ostree-image-signed:docker:// && shift; fi
    [ $# = 2 ] || die "unexpected argument"
    pulls "$2"
    if [ "$signed$2" = "$(image "$(next)")" ]; then echo "Image specification is unchanged."; exit 0; fi
    begin
    echo "$signed$2" > $now/new.image
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
