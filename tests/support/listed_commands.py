"""Commands of the documentation that `tests/test_commands.py` does not run as they are written."""

# What is run in place of a command that takes longer, or that never ends.
FEW = "--sizes 64 --iterations 20 --rounds 1"
INSTEAD = {
    "rdma-transport metrics": "rdma-transport metrics --once",
    "rdma-transport timeline --seconds 5": "rdma-transport timeline --seconds 0.2",
    "rdma-transport bench fabric": f"rdma-transport bench fabric {FEW}",
    "rdma-transport run --data-parallel -n 4 -- python train.py": (
        "rdma-transport run --data-parallel -n 2 -- python examples/data_parallel/digits.py"
    ),
    "rdma-transport run --data-parallel --explain -n 2 -- python train.py": (
        "rdma-transport run --data-parallel --explain -n 2 -- "
        "python examples/data_parallel/digits.py"
    ),
    "rdma-transport run --horovod -n 4 -- python train.py": (
        "rdma-transport run --horovod -n 2 -- "
        "python -c 'import horovod.tensorflow as hvd; hvd.init()'"
    ),
    "rdma-transport run --elastic -n 4 --data-parallel -- python train.py": (
        "rdma-transport run --elastic -n 2 --data-parallel -- "
        "python examples/data_parallel/digits.py"
    ),
    "rdma-transport run --elastic --min 2 --max 4 --horovod -- python train.py": (
        "rdma-transport run --elastic --min 1 --max 2 --horovod -- "
        "python examples/horovod/elastic.py"
    ),
    ".venv/bin/python -m pytest tests/plugin/test_static.py -k training": (
        ".venv/bin/python -m pytest tests/plugin/test_static.py -k training --collect-only -q"
    ),
    "cmake --preset debug && cmake --build --preset debug && ctest --preset debug -R static_test": (
        "ctest --preset debug -R static_test_loopback"
    ),
}

# A command that ends only after the other one, on the other host, has begun.
OTHER_HOST = {
    "rdma-transport doctor --peer HOST:2222 --fabric libfabric": (
        "rdma-transport doctor --listen 2222 --fabric libfabric"
    ),
    (
        "rdma-transport run --data-parallel -n 1 --nnodes 2 --node-rank 0 --master-addr node1 -- "
        "python examples/data_parallel/digits.py"
    ): (
        "rdma-transport run --data-parallel -n 1 --nnodes 2 --node-rank 1 --master-addr node1 -- "
        "python examples/data_parallel/digits.py"
    ),
    "rdma-transport run -n 4 --nnodes 2 --node-rank 0 --master-addr node1 -- python script.py": (
        "rdma-transport run -n 4 --nnodes 2 --node-rank 1 --master-addr node1 -- python script.py"
    ),
}

NOT_RUN = {
    "it needs a card, or root and a network that it changes": (
        "ib_write_bw -d mlx5_0 -x 3",
        "ibv_devinfo -v",
        "modprobe rdma_rxe",
        "rdma link add rxe0 type rxe netdev eth0",
        "dcb app replace dev eth2 dscp-prio 26:3",
        "dcb pfc set dev eth2 prio-pfc all:off 3:on",
        "firewall-cmd --add-port=4791/udp",
        "ip link set dev eth2 mtu 9000",
        "systemctl edit slurmd",
        "ulimit -l unlimited",
    ),
    "it trains for minutes: tests/bench/test_data_parallel.py measures smaller models": (
        "rdma-transport bench data-parallel --models dense-4096-2 "
        "--ranks 2x1@10gbit,2x1@1gbit,2x2@10gbit,2x2@1gbit "
        "--compare dense,factors,strategy-grpc,ddp",
        "rdma-transport bench data-parallel --models dense-1024-2,dense-4096-2 "
        "--batch 8,32,128,512 --ranks 2x2@10gbit,2x2@1gbit --compare dense,factors",
        "rdma-transport bench data-parallel --models inception_v3 --ranks 1,2 --batch 8 "
        "--compare unchanged,strategy-grpc --rounds 2",
        "rdma-transport bench data-parallel --ranks 2 --models dense-4096,dense-64,variables "
        "--compare strategy-grpc",
    ),
    "it needs Docker or Kubernetes": (
        "docker run --network=host --device=/dev/infiniband --ulimit memlock=-1 --memory=64G "
        '-e TF_CONFIG="$TF_CONFIG" image',
        "docker run --ulimit memlock=-1",
        "kubectl create secret generic job --from-literal=secret=$(openssl rand -hex 32)",
    ),
    "it needs Slurm: tests/slurm runs the script, the examples and collectives of NumPy": (
        "sbatch job.sh",
        "srun --nodes=2 --ntasks=4 python examples/all_reduce.py",
        "srun --nodes=2 --ntasks=4 python script.py",
        "srun --no-kill --ntasks-per-node=1 rdma-transport run --elastic --horovod -n 4 -- "
        "python train.py",
        "srun --nodes=2 --ntasks-per-node=1 rdma-transport qualify --fabric verbs",
        "srun --nodes=2 --ntasks=4 rdma-transport run --data-parallel -- python train.py",
        "srun --nodes=2 --ntasks=8 rdma-transport run --horovod -- python train.py",
        "srun --overlap --jobid=JOB --nodelist=NODE rdma-transport status",
    ),
    "it needs two hosts: tests/rdma_transport/test_run_horovod.py runs both parts on one": (
        "rdma-transport run --horovod -n 4 --nnodes 2 --node-rank 0 --master-addr host1 -- "
        "python train.py",
    ),
    "it needs several hosts: tests/hosts/test_elastic.py makes some": (
        "rdma-transport run --elastic --max 16 --horovod -n 4 "
        "--host-discovery-script ./hosts.sh -- python train.py",
        "rdma-transport run --elastic --min 4 --max 16 --horovod -n 4 --nnodes 2 --node-rank 0 "
        "--master-addr node1 -- python train.py",
    ),
    "it needs two hosts: tests/hosts and tests/verbs run it on some": (
        "rdma-transport qualify --nnodes 2 --node-rank 0 --master-addr node1",
    ),
    "it installs: `make venv`, `make test-wheel` and `make test-tensorflow` do, elsewhere": (
        "apt-get install libfabric1",
        "apt-get install libibverbs1 ibverbs-providers",
        "dnf install libfabric",
        "dnf install libibverbs",
        'pip install --no-deps "tf-keras==2.21.*"',
        "pip install --no-build-isolation --no-deps .",
        "pip install .",
        'pip install ".[tensorflow]"',
        'pip install "$(echo dist/rdma_transport-*.whl)[tensorflow]"',
        "pip install cmake cython ninja scikit-build-core",
        "pip install dist/rdma_transport-*.whl",
        "pip uninstall rdma_transport",
    ),
    "its program is in Debian's libfabric-bin, which the tests do not install": (
        "fi_info -t FI_EP_RDM",
    ),
    "its program is built by `make fuzz`, which `make test-sanitizers` does, too": (
        "build/fuzz/tests/fuzz/link_fuzz -minimize_crash=1 -runs=100000 "
        "build/fuzz/failed/link-crash-...",
        "build/fuzz/tests/fuzz/link_fuzz FILE",
        "cp minimized-from-... tests/fuzz/corpus/link/a-name-that-describes-the-defect",
        "link_fuzz -merge=1 -use_counters=0 NEW_FOLDER build/fuzz/corpus/link "
        "tests/fuzz/corpus/link",
        "tools/fuzz.sh 600 link",
    ),
    "it needs a script with a step: tests/graph_analyzer/test_reductions.py has one": (
        "rdma-transport run -n 2 --quiet-ranks -- rdma-transport plan train.py:step",
    ),
    "its program comes with a package that only users install": ("tensorboard --logdir logs",),
    "it takes minutes": (
        "CHAOS_SEED=1000 CHAOS_SEEDS=500 build/asan/tests/native/chaos_test",
        "build/tensorflow-2.22/venv/bin/python -m pytest tests --ignore=tests/verbs",
        "make bench-verbs",
        "make fuzz",
        "make fuzz SECONDS=60",
        "make paper",
    ),
    "it takes minutes; tests/bench measures less": (
        "python -m bench.collectives",
        "python -m bench.collectives --ops all_reduce --repeat 9 --mpi",
        "python -m bench.collectives --veth cubic --ops all_reduce --repeat 25",
        "python -m bench.data_service --repeat 9",
        "python -m bench.edges --repeat 25",
        "python -m bench.edges --veth cubic --repeat 15",
        "python -m bench.idle 5",
        "python -m bench.many_tasks",
        "python -m bench.paper --only soft_roce_message_sizes",
        "python -m bench.train_models --veth cubic --models fcn5 --repeat 24",
        "python -m bench.two_hosts",
        "python -m bench.two_hosts --front-ends numpy --workers 8",
        "python -m bench.two_hosts --front-ends tensorflow",
        "python -m bench.verbs --rounds 2 --no-edges",
        "rdma-transport bench",
        "rdma-transport bench collectives --compare mpi",
        "rdma-transport bench embeddings",
        "rdma-transport bench latency --compare grpc --json",
        "rdma-transport bench latency --hosts a:7000,b:7000 --role 0",
        "rdma-transport bench latency --hosts a:7000,b:7000 --role 1",
        "rdma-transport bench train --models gru,vgg16 --compare grpc -o steps.png",
    ),
    "it needs the timelines of two hosts: tests/rdma_transport/test_timeline.py makes some": (
        "rdma-transport timeline --merge a.json --merge b.json -o both.json",
    ),
    "it changes the sources; tests/test_docs.py and `make lint` compare": (
        ".venv/bin/python tools/list_counters.py",
        "make format",
    ),
    "it runs the examples that `python -m examples.digits` and tests/examples run": ("make run",),
    "tests/examples/test_horovod.py runs it, too": (
        "rdma-transport run --horovod -n 2 -- python examples/horovod/keras_fit.py",
        "rdma-transport run --horovod -n 2 -- python examples/horovod/gradient_tape.py",
        "rdma-transport run --horovod -n 2 -- python examples/horovod/session.py",
    ),
    "there is no such version yet": ("make test-tensorflow TENSORFLOW=2.22",),
}
