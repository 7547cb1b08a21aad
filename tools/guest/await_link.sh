#!/bin/sh
# Waits in a guest until a network card is up, which takes a moment, or down.
# usage: await_link.sh DEVICE up|down
until grep -qx "$2" "/sys/class/net/$1/operstate"; do
  sleep 0.05
done
