#!/bin/busybox sh
# The initramfs's init: makes the host's file system the root, under a layer in memory.
set -e
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
  insmod "$module"
done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o ro,cache=loose,$options root /lower
mount -t tmpfs upper /upper
mkdir /upper/data /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /root
mount -t 9p -o cache=none,$options share "/root$guest_share"
for folder in proc sys dev; do
  mount --move /$folder /root/$folder
done
exec switch_root /root /bin/sh "$guest_repository/tools/guest/start.sh"
