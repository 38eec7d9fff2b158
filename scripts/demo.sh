#!/usr/bin/env bash
# The main job in under three minutes on two cores: train a blocked HMM of 2,048 states on Python's own reference text
# (nothing is downloaded), measure its perplexity, ask it questions, and draw it. Results go to demo/.
#
#   bash scripts/demo.sh [FOLDER]     DEMO_EPOCHS=1 for a quicker, worse model
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-demo}"
run="$out/run"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
ask() { pplseq query "$run" "$@" --text --threads 2; }

rm -rf "$run"  # an earlier demonstration; whatever else is in the folder stays

say "1. The text, and what a model of 2,048 states will cost on it"
pplseq info vlhmm builtin:python --num-states 2048 --num-blocks 64 --threads 2

say "2. Training: 64 Brown clusters of words, 32 states for each, state dropout 0.25"
pplseq train vlhmm builtin:python --num-states 2048 --num-blocks 64 --patience 1 --epochs "${DEMO_EPOCHS:-3}" --threads 2 --out "$run"

say "3. Perplexity of text it has not seen, belief carried over and sentence by sentence"
pplseq evaluate "$run" --threads 2 --per-token "$out/tokens.tsv" > "$out/evaluation.jsonl"

say "4. What comes next?"
printf '%s\n' "the value of the" "if the object is" | ask next-word --no-unknown

say "5. Which word is missing?"
printf '%s\n' "the value of _ is an object ." "a _ is raised if the _ is not a string ." | ask infill --no-unknown

say "6. The most probable states of a sentence (word/state), and the posterior of each"
echo "the method returns a new object ." | ask decode
echo "the method returns a new object ." | ask smooth --top 3

say "7. Sentences that go on from a beginning"
echo "a class" | ask continue --no-unknown --num-samples 4 --temperature 0.7

say "8. The same as JSON lines, for programs"
echo '{"id": 1, "words": ["the", null, "of", "the", "object"]}' | pplseq query "$run" infill --top 2 --threads 2

say "9. A page about the run"
pplseq report "$run" --out "$out"
say "See $out/report.html"
