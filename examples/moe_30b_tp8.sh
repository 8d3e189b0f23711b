#!/usr/bin/env bash
# MODEL=/models/moe-30b TRAIN=train.jsonl TEST=test.jsonl RAY=10.0.0.1:6379 [SGLANG_PYTHON=/envs/sglang/bin/python] examples/moe_30b_tp8.sh [FLAGS]
# One engine of eight GPUs on one node, the trainer on another. Not run on GPUs yet. Before it, in an environment with asyncrl on each node:
#   first node:    ray start --head --port 6379
#   second node:   ray start --address 10.0.0.1:6379
set -euo pipefail
: "${MODEL:?a Hugging Face directory}" "${TRAIN:?a file of JSON lines, see plugins/tasks/jsonl/README.md}" "${TEST:?the same, held out}"
: "${RAY:?address of the Ray cluster of both nodes}"
exec ${ASYNCRL:-asyncrl} train "$(dirname "$0")/moe_30b_tp8.toml" --model "$MODEL" --task.path "$TRAIN" \
  --task.eval.held-out "$TEST" --engine.python "${SGLANG_PYTHON:-python}" --ray-address "$RAY" "$@"
