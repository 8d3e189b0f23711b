#!/usr/bin/env bash
# examples/sglang_cpu.sh [FLAGS]
# The demo on a real SGLang server without a GPU. The first time it installs SGLang (2.2 GB) into .venv-sglang, or uses the environment
# that ASYNCRL_SGLANG_VENV names.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${ASYNCRL_SGLANG_VENV:-.venv-sglang}
[ -x "$venv/bin/python" ] || ${PYTHON:-python3} tools/sglang_cpu.py
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}   # a second thread beside a busy neighbour only spins
exec ${ASYNCRL:-asyncrl} train examples/sglang_cpu.toml --engine.python "$venv/bin/python" "$@"
