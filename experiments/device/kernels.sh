#!/usr/bin/env bash
# Correctness, then accuracy, then timing of the kernels and of the implementations beside them, on a machine with one
# GPU.
#
#   kernels.sh FOLDER [LAB [LONGEST]]
#
# Writes CSV to FOLDER and prints a short table last. LAB is the lab's binary (built with
# `cargo build --release -p ringlab-kernels --example lab`); LONGEST the longest sequence that is timed. The kernels are
# timed before the others and once more after them (bench-again-*): the difference is the card's heat.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?a folder for the results}
lab=${2:-$here/../../target/release/examples/lab}
longest=${3:-65536}
export RINGLAB_CACHE_DIR=${RINGLAB_CACHE_DIR:-$out/cache}
mkdir -p "$out"
begin=$SECONDS
say() { echo "[$((SECONDS - begin)) s] $*"; }

# NVRTC of a Python wheel, where the system has none.
if ! ldconfig -p | grep -q libnvrtc.so; then
    for folder in /usr/local/cuda/lib64 $(python3 -c 'import nvidia; print(*(f"{p}/cu13/lib" for p in nvidia.__path__))' 2>/dev/null); do
        [ -d "$folder" ] && export LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-}
    done
fi
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv > "$out/machine.txt"
python3 -c 'import torch; print("torch", torch.__version__, "cudnn", torch.backends.cudnn.version())' >> "$out/machine.txt"

# Checks side by side: the f64 reference on the CPU takes most of their time.
failed=0
pids=()
start() {
    local log=$1
    shift
    ("$@" > "$out/$log" 2>&1 || echo "ended with $?" >> "$out/$log") &
    pids+=($!)
}
for path in hopper portable; do
    start check-$path.log timeout 150 "$lab" check "$out" $path
done
if command -v compute-sanitizer > /dev/null; then
    mkdir -p "$out/memcheck" "$out/racecheck"
    for path in hopper portable; do
        start sanitizer-memcheck-$path.txt timeout 150 compute-sanitizer --tool memcheck "$lab" small "$out/memcheck" $path
        # Reports of the Hopper kernels are to be read beside kernels/NOTES.md: the tool does not follow their barriers.
        start sanitizer-racecheck-$path.txt timeout 150 compute-sanitizer --tool racecheck --print-limit 20 "$lab" tiny "$out/racecheck" $path
    done
else
    echo "no compute-sanitizer on this machine" > "$out/sanitizer.txt"
fi
wait "${pids[@]}"
for log in "$out"/check-*.log "$out"/sanitizer*.txt; do
    say "$(basename "$log"): $(tail -n 2 "$log" | tr '\n' ' ')"
    grep -q 'ended with' "$log" && failed=1
done
for path in hopper portable; do
    timeout 60 "$lab" accuracy "$out" $path > "$out/accuracy-$path.txt" || failed=1
done
say accuracy
for path in hopper portable; do
    timeout 60 "$lab" versions "$out" $path > "$out/versions-$path.txt" 2>&1 || failed=1
    say versions $path
done
timeout 90 "$lab" bench "$out" hopper "$longest" > "$out/bench-hopper.txt" || failed=1
say bench hopper
timeout 150 python3 "$here/peers_kernels.py" "$out" "$longest" > "$out/bench-peers.txt" || failed=1
say peers
mkdir -p "$out/again"
timeout 60 "$lab" bench "$out/again" hopper 16384 > "$out/bench-again.txt" || failed=1
sed 's/^ringlab-/ringlab-again-/' "$out/again/bench-hopper.csv" > "$out/bench-again-hopper.csv"
say bench hopper again
timeout 60 "$lab" bench "$out" portable 16384 > "$out/bench-portable.txt" || failed=1
say bench portable

rm -rf "$out/problems" "$out/cache" "$out/memcheck" "$out/racecheck" "$out/again"
python3 "$here/table_kernels.py" "$out"
exit $failed
