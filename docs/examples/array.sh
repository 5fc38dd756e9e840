#!/bin/bash
#SBATCH --job-name=table1
#SBATCH --array=0-31%8
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=02:00:00
#SBATCH --requeue

export OPENBLAS_CORETYPE=Haswell XLA_FLAGS=--xla_cpu_max_isa=AVX2
clairjax reproduce clair-table1 --preset paper --out table1 --part "$SLURM_ARRAY_TASK_ID/32"
