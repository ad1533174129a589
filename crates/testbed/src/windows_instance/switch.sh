#!/bin/sh
# Turns the power of the instance it runs in: `reboot` or `off`.
echo "$1" >/run/power
