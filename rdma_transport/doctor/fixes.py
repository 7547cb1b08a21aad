"""Fixes that several checks share."""

import sys

from rdma_transport.doctor.result import PLACES

LIBRARY = {
    "shell": "apt-get install libibverbs1 ibverbs-providers    # RHEL: dnf install libibverbs",
    "docker": "RUN apt-get update && apt-get install -y libibverbs1 ibverbs-providers",
}
LIBFABRIC = {
    "shell": "apt-get install libfabric1    # RHEL: dnf install libfabric; AWS EFA: the EFA "
    "installer, and RDMA_TRANSPORT_LIBFABRIC=/opt/amazon/efa/lib/libfabric.so.1 if the loader does "
    "not find it; Slingshot: HPE's libfabric",
    "docker": "RUN apt-get update && apt-get install -y libfabric1",
}
DEVICE = {
    "shell": "modprobe ib_uverbs && modprobe mlx5_ib    # the card's module; "
    "without a card: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
}
NODES = {
    "shell": "modprobe ib_uverbs; apt-get install rdma-core    # its udev rules give access",
    "systemd": "DeviceAllow=char-infiniband_verbs rw    # and PrivateDevices=no",
    "docker": "docker run --device=/dev/infiniband ...",
    "kubernetes": "resources: {limits: {rdma/hca_shared_devices_a: 1}} in the container    "
    "# use the resource name of your RDMA device plugin",
}
PORT = {
    "shell": "rdma link; ip link set dev eth0 up; ibv_devinfo -v    "
    "# use the interface that rdma link prints; InfiniBand needs a subnet manager (opensm)",
}
NETWORK = {
    "shell": "ip addr add 10.0.0.1/24 dev eth0    # use the interface that rdma link prints",
    "docker": "docker run --network=host ...    # GIDs belong to a network namespace",
    "kubernetes": "hostNetwork: true in the pod's spec    # or an interface of the card (SR-IOV)",
}
FORK = {
    "shell": "export RDMAV_FORK_SAFE=1    # or Linux 5.12 and rdma-core 35 or newer",
    "systemd": "Environment=RDMAV_FORK_SAFE=1",
    "docker": "docker run -e RDMAV_FORK_SAFE=1 ...",
    "kubernetes": 'env: [{name: RDMAV_FORK_SAFE, value: "1"}] in the container',
    "slurm": "srun --export=ALL,RDMAV_FORK_SAFE=1 ...",
}


def install(package: str) -> dict[str, str]:
    """Return fixes that install a package in this Python."""
    return {
        "shell": f"{sys.executable} -m pip install {package}",
        "docker": f"RUN pip install {package}",
    }


def _limit(letter: str, name: str, item: str, value: str = "infinity") -> dict[str, str]:
    """Return fixes that raise a limit, by its `ulimit` letter, systemd name and PAM item."""
    unlimited = value == "infinity"
    line = f"Limit{name}={value}"
    plain = "unlimited" if unlimited else value
    return {
        "shell": f"ulimit -{letter} {plain}    "
        f"# if refused: '* - {item} {plain}' in /etc/security/limits.conf",
        "systemd": line,
        "docker": f"docker run --ulimit {item}={-1 if unlimited else value} ...",
        "kubernetes": f"{line} in the unit of containerd or CRI-O on the node",
        "slurm": f"PropagateResourceLimitsExcept={name} in slurm.conf, "
        f"{line} in the unit of slurmd",
    }


OPEN_FILES = _limit("n", "NOFILE", "nofile", "65536") | {
    "shell": "ulimit -n $(ulimit -Hn)    "
    "# if that is too few: '* - nofile 65536' in /etc/security/limits.conf",
}
FILE_SIZE = _limit("f", "FSIZE", "fsize")
ADDRESS_SPACE = _limit("v", "AS", "as") | {
    "docker": "LimitAS=infinity in the unit of docker    # docker run cannot set it",
}
THREADS = _limit("u", "NPROC", "nproc") | {
    "systemd": "TasksMax=infinity, LimitNPROC=infinity",
    "docker": "docker run --pids-limit=-1 ...",
    "kubernetes": "podPidsLimit: -1 in the kubelet's configuration",
}
COMPARE = {
    "shell": "rdma-transport info    # on both hosts: compare fabrics, users, ports and GIDs",
    "docker": "docker run --network=host --device=/dev/infiniband --ulimit memlock=-1 ...",
    "kubernetes": "hostNetwork: true in the pod's spec, and IPC_LOCK in the securityContext",
}
CLOCK = {
    "shell": "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource    "
    "# as root; virtual machines: kvm-clock or hyperv_clocksource_tsc_page",
}


def ports(low: str, high: str) -> dict[str, str]:
    """Return the lines that limit the ports of tasks, and open them in a firewall."""
    first, last = 40000, 40031
    both = f"{low}={first} {high}={last}"
    return {
        "shell": f"export {both}; firewall-cmd --add-port={first}-{last}/tcp    # on all hosts",
        "systemd": f"Environment={both}",
        "docker": f"docker run -e {low}={first} -e {high}={last} ...",
        "kubernetes": f'env: [{{name: {low}, value: "{first}"}}, '
        f'{{name: {high}, value: "{last}"}}] in the container',
        "slurm": f"srun --export=ALL,{low}={first},{high}={last} ...",
    }


def memory(amount: str) -> dict[str, str]:
    """Return fixes that give a task at least this much memory, as ``24G``."""
    return {
        "shell": f"systemd-run --scope -p MemoryMax={amount} ...    # or a host with more memory",
        "systemd": f"MemoryMax={amount}",
        "docker": f"docker run --memory={amount} ...",
        "kubernetes": f"resources: {{limits: {{memory: {amount}i}}}} in the container",
        "slurm": f"#SBATCH --mem={amount}",
    }


def from_help(text: str) -> dict[str, str]:
    """Parse the lines ``  place: line`` in the native library's help for a limit."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        place, colon, rest = line.strip().partition(": ")
        if colon and place.lower() in PLACES:
            found[place.lower()] = rest
    return found
