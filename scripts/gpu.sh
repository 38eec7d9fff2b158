#!/usr/bin/env bash
# Everything that wants a GPU, in one command and in pieces: each piece leaves a mark when it is done, and is not done again.
# A piece that was cut off goes on where it stopped (trainings resume). Without a GPU: bash scripts/gpu.sh --dry-run
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-runs/gpu}
DATA=${DATA:-builtin:python}   # a folder with train, valid and test text
DEVICE=cuda MINUTES=${MINUTES:-24} STATES=${STATES:-32768} BLOCKS=${BLOCKS:-128} STREAMS=64 TRAIN_TIME=${TRAIN_TIME:-12m} MARKER=gpu
DRY=""
if [ "${1:-}" = "--dry-run" ]; then   # the same pieces, small, on the CPU
    DEVICE=cpu DRY="--dry-run" STATES=64 BLOCKS=16 STREAMS=4 TRAIN_TIME=25s OUT=${OUT}-dry MARKER="not slow and not gpu"
fi
mkdir -p "$OUT"
END=$((SECONDS + MINUTES * 60))

piece() {   # name, seconds it may take, command
    local name=$1 most=$2; shift 2
    if [ -e "$OUT/$name.done" ]; then echo "$name: done before"; return; fi
    if [ $((SECONDS + 30)) -ge $END ]; then echo "$name: no time left; run this again"; return; fi
    echo "$name: $*"
    local left=$((END - SECONDS))
    if timeout --signal=INT $((most < left ? most : left)) "$@" > "$OUT/$name.log" 2>&1; then
        touch "$OUT/$name.done"
    else
        echo "$name: not finished (see $OUT/$name.log)"; tail -3 "$OUT/$name.log"
    fi
}

run="$OUT/vlhmm"
TESTS=(tests/gpu)
[ -z "$DRY" ] || TESTS=(tests/kernels/test_triton.py -k "row_normalisers or finds")
piece numbers 300 "$PYTHON" -m pytest -q -p no:cacheprovider -m "$MARKER" "${TESTS[@]}"
piece kernels 240 "$PYTHON" scripts/bench/gpu_step.py $DRY --out "$OUT/gpu_step.json"
if [ -d "$run/last" ]; then
    piece train 900 "$PYTHON" -m pplseq train --resume "$run"
else
    piece train 900 "$PYTHON" -m pplseq train vlhmm "$DATA" --out "$run" --num-states $STATES --num-blocks $BLOCKS --transition hierarchical \
        --batch-size $STREAMS --segment-length 32 --schedule time --max-time $TRAIN_TIME --device $DEVICE
fi
piece evaluate 120 "$PYTHON" -m pplseq evaluate "$run" --device $DEVICE
left=0
for name in numbers kernels train evaluate; do [ -e "$OUT/$name.done" ] || left=1; done
exit $left
