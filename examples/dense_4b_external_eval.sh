#!/usr/bin/env bash
# MODEL=/models/4b TRAIN=train.jsonl TEST=test.jsonl [SGLANG_PYTHON=/envs/sglang/bin/python] examples/dense_4b_external_eval.sh [FLAGS]
# Seven GPUs for the run, the last one for the server that evaluates. Not run on GPUs yet.
set -euo pipefail
: "${MODEL:?a Hugging Face directory}" "${TRAIN:?a file of JSON lines, see plugins/tasks/jsonl/README.md}" "${TEST:?the same, held out}"
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6   # what the run places engines and trainer on
exec ${ASYNCRL:-asyncrl} train "$(dirname "$0")/dense_4b_external_eval.toml" --model "$MODEL" --task.path "$TRAIN" \
  --task.eval.held-out "$TEST" --engine.python "${SGLANG_PYTHON:-python}" "$@"
