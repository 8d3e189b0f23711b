#!/usr/bin/env bash
# MODEL=/models/4b [SGLANG_PYTHON=/envs/sglang/bin/python] examples/random_stress.sh [FLAGS]
# [ENGINE=torch] examples/random_stress.sh --small [FLAGS]
# Random prompts, lengths and rewards on real engines and a real trainer: eight GPUs, where it has not been run yet. With --small a minute on
# two cores: the embedded engine, and model and prompts of the task sort-digits.
set -euo pipefail
recipe=$(dirname "$0")/random_stress.toml
if [ "${1:-}" = --small ]; then
  shift
  exec ${ASYNCRL:-asyncrl} train "$recipe" --task sort-digits --engine "${ENGINE:-torch}" --device cpu --dtype float32 --num-engines 2 --trainer-ranks 1 \
    --trainer.dtype fp32 --steps 10 --batch-size 4 --group-size 4 --max-concurrent-samples 16 --max-new-tokens 96 --producer.mean 24 \
    --eval-interval 5 --save-interval 5 "$@"
fi
: "${MODEL:?a Hugging Face directory}"
exec ${ASYNCRL:-asyncrl} train "$recipe" --model "$MODEL" --engine.python "${SGLANG_PYTHON:-python}" "$@"
