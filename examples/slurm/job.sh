#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --cpus-per-task=32 --mem=64G --time=4:00:00
#SBATCH --requeue --open-mode=append
srun rdma-transport doctor --quick || exit 1
srun --kill-on-bad-exit=1 python train.py "$@"
