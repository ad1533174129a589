#!/bin/busybox sh
# The first process of the machine: mounts the disk, runs the program, says how it ended, and
# switches the machine off. The program and its arguments follow as a function `program`.
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sysfs /sys
$busybox mount -t devtmpfs dev /dev
$busybox mount -t tmpfs tmpfs /tmp
# Nothing reaches the disk by itself, so that whatever is there after a cut was asked to be: the
# kernel neither writes back by the clock (0 turns it off), nor because much is waiting, nor commits
# ext4's journal every five seconds; and ext4 does not guess that a rename wants its data written.
echo 0 > /proc/sys/vm/dirty_writeback_centisecs
echo 360000 > /proc/sys/vm/dirty_expire_centisecs
echo 90 > /proc/sys/vm/dirty_ratio
echo 80 > /proc/sys/vm/dirty_background_ratio
for module in /modules/*; do $busybox insmod "$module"; done
if $busybox mount -t ext4 -o commit=3600,noauto_da_alloc /dev/vda /disk; then
    echo "evenkeel-testbed: started"
    program < /dev/null
    echo "evenkeel-testbed: ended with $?"
    $busybox umount /disk
fi
$busybox poweroff -f
