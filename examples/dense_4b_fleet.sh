#!/usr/bin/env bash
# MODEL=/models/4b TRAIN=train.jsonl TEST=test.jsonl [SGLANG_PYTHON=/envs/sglang/bin/python] examples/dense_4b_fleet.sh [FLAGS]
# Eight GPUs, one of them for an engine that only evaluates. Not run on GPUs yet.
set -euo pipefail
: "${MODEL:?a Hugging Face directory}" "${TRAIN:?a file of JSON lines, see plugins/tasks/jsonl/README.md}" "${TEST:?the same, held out}"
exec ${ASYNCRL:-asyncrl} train "$(dirname "$0")/dense_4b_fleet.toml" --model "$MODEL" --task.path "$TRAIN" \
  --task.eval.held-out "$TEST" --engine.python "${SGLANG_PYTHON:-python}" "$@"
