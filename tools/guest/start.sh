#!/bin/sh
# The guest's first process once it has its root: network, rxe0, and the agent.
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8
cd "$guest_repository"
mkdir /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr

echo "guest$guest_number" >/proc/sys/kernel/hostname
printf '10.7.0.1 guest1\n10.7.0.2 guest2\n' >>/etc/hosts
echo 1 >/proc/sys/net/ipv6/conf/all/keep_addr_on_down
ip link set lo up
# Each card is on a network of its own. Tests that want a second port add rxe1 (Guest.add_port).
for card in 0 1; do
  ip link set "eth$card" mtu 4200 up
  ip address add "10.$((7 + card)).0.$guest_number/24" dev "eth$card"
  ip address add "fd00:$((7 + card))::$guest_number/64" dev "eth$card" nodad
done
for card in 0 1; do
  tools/guest/await_link.sh "eth$card" up
done
rdma link add rxe0 type rxe netdev eth0

# Other users must reach the repository and its Python, wherever the host keeps them.
set --
for path in "$guest_repository/." "$(readlink -f .venv/bin/python)"; do
  while path=${path%/*} && [ -n "$path" ]; do
    set -- "$@" "$path"
  done
done
chmod o+x "$@"

echo "$guest_share/core.%e.%p" >/proc/sys/kernel/core_pattern
ulimit -c unlimited
ulimit -l unlimited
/usr/bin/python3 -I -S tools/guest/agent.py
