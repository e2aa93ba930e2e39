#!/usr/bin/env bash
# Correctness, then accuracy, then timing of the kernels and of the implementations beside them, on a machine with one
# GPU.
#
#   kernels.sh FOLDER [LAB [LONGEST]]
#
# Writes CSV to FOLDER and prints a short table last. LAB is the lab's binary (built with
# `cargo build --release -p ringlab-kernels --example lab`); LONGEST the longest sequence that is timed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?a folder for the results}
lab=${2:-$here/../../target/release/examples/lab}
longest=${3:-65536}
export RINGLAB_CACHE_DIR=${RINGLAB_CACHE_DIR:-$out/cache}
mkdir -p "$out"

# NVRTC of a Python wheel, where the system has none.
if ! ldconfig -p | grep -q libnvrtc.so; then
    for folder in /usr/local/cuda/lib64 $(python3 -c 'import nvidia; print(*(f"{p}/cu13/lib" for p in nvidia.__path__))' 2>/dev/null); do
        [ -d "$folder" ] && export LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-}
    done
fi

failed=0
for path in hopper portable; do
    timeout 90 "$lab" check "$out" $path || failed=1
    timeout 60 "$lab" accuracy "$out" $path > "$out/accuracy-$path.txt" || failed=1
done
for path in hopper portable; do
    timeout 90 "$lab" bench "$out" $path "$longest" > "$out/bench-$path.txt" || failed=1
done
timeout 150 python3 "$here/peers_kernels.py" "$out" "$longest" > "$out/bench-peers.txt" || failed=1

rm -rf "$out/problems" "$out/cache"
python3 "$here/table_kernels.py" "$out"
exit $failed
