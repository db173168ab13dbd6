#!/bin/sh
# A task prolog of Slurm (TaskProlog in slurm.conf): gives `overspill run` in a job its budget and
# its swap. Slurm puts into the task's environment what this prints after `export`.
#
# The budget is three quarters of the memory that the job has on the node: the rest is for what is
# not managed. What the user has set stays.
set -eu

if [ -z "${OVERSPILL_MEMORY:-}" ]; then
    # Both are in MiB. Slurm sets one of them, or none where memory is not allocated.
    if [ -n "${SLURM_MEM_PER_NODE:-}" ]; then
        mib=$SLURM_MEM_PER_NODE
    elif [ -n "${SLURM_MEM_PER_CPU:-}" ]; then
        mib=$((SLURM_MEM_PER_CPU * ${SLURM_CPUS_ON_NODE:-1}))
    else
        mib=0
    fi
    # All tasks of a job on a node share its memory.
    tasks=${SLURM_NTASKS_PER_NODE:-1}
    share=$((mib * 3 / 4 / tasks))
    if [ "$share" -ge 4 ]; then
        echo "export OVERSPILL_MEMORY=${share}M"
    fi
fi

# A directory on a disk of the node, not on a file system of the cluster.
scratch=${OVERSPILL_SCRATCH:-/scratch/${SLURM_JOB_ID:-}}
if [ -z "${OVERSPILL_SWAP:-}" ] && [ -d "$scratch" ] && [ -w "$scratch" ]; then
    echo "export OVERSPILL_SWAP=$scratch"
fi
