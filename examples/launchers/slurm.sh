#!/usr/bin/env bash
# A job of eight workers on two nodes. Make its secret once, where all nodes see it, then start any program:
#   umask 077; openssl rand -hex 32 > $HOME/job.secret
#   sbatch slurm.sh ./train --epochs 10
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
set -euo pipefail

export LOCKSTEP_SECRET_FILE=$HOME/job.secret
# Only srun makes a step, in which each task is a worker.
srun "$@"
