#!/usr/bin/env bash
# Whole plans on all GPUs of one node: numbers first, then times, then PyTorch's context_parallel, then calibration and
# validation.
#
#   runtime.sh FOLDER [RINGLAB [PART ...]]
#   budget=590 runtime.sh FOLDER RINGLAB correct calibrate shape peers validate     # four or eight GPUs in ten minutes
#
# Writes JSON, CSV and TOML to FOLDER and prints a short table last. RINGLAB is the binary (`cargo build --release`);
# PART is any of correct, times, processes, faults, peers, calibrate, shape, validate; all by default. Every part ends by
# itself; with a budget in seconds each gets its share of it, and validate, wherever it stands, what the others leave.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?a folder for the results}
ringlab=${2:-$here/../../target/release/ringlab}
shift $(($# < 2 ? $# : 2))
parts=${*:-correct times processes faults peers calibrate shape validate}
export RINGLAB_CACHE_DIR=${RINGLAB_CACHE_DIR:-/tmp/ringlab-kernels} NCCL_NVLS_ENABLE=0 CUDA_DEVICE_MAX_CONNECTIONS=32
# Seconds of the whole script, and of each part out of them; 0: every part has the time that its commands allow themselves.
budget=${budget:-0}
# How GPUs are loaded where validate measures (cold or sustained; its own default if empty), and its seconds.
load=${load:-} limit=${limit:-$((budget > 0 ? budget : 280))}
declare -A share=([correct]=130 [times]=200 [processes]=60 [faults]=80 [peers]=60 [calibrate]=180 [shape]=35 [validate]=0)
mkdir -p "$out"
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
failed=0

# SECONDS: that many, or what the part has left.
at_most() {
    local left=$((deadline - SECONDS))
    echo $((left < $1 ? left : $1))
}

# NAME SECONDS ARGUMENT...: one run of the binary, its JSON as NAME.json, what it says as NAME.txt.
run() {
    local name=$1 limit start=$SECONDS
    limit=$(at_most "$2")
    shift 2
    [ "$limit" -ge 5 ] || { failed=1; echo "NOT RUN, no time left: $name"; return; }
    timeout -s INT -k 20 "$limit" "$ringlab" "$@" --format json -o "$out/$name.json" 2> "$out/$name.txt"
    local rc=$?
    [ $rc = 0 ] || { failed=1; echo "FAILED ($rc) $name: $(tail -c 600 "$out/$name.txt" | tr '\n' ' ')"; }
    echo "$name: $((SECONDS - start)) s"
}

# P: all schedules, and forms of them that depend on the number of ranks; of odd numbers those that may differ there.
every() {
    case $1 in
    8) echo all,striped:64,double-ring:2,double-ring:4,usp:2x4,usp:4x2,usp:2x4:across ;;
    4) echo all,striped:64,double-ring:2,usp:2x2,usp:2x2:across ;;
    3 | 5 | 7) echo dist-flash,ring,zigzag,striped ;;
    *) echo all,striped:64 ;;
    esac
}

# How many GPUs are taken: all, and of four or more also four and odd numbers.
groups() {
    echo "$gpus"
    [ "$gpus" -lt 4 ] || for cp in 4 3 5 7; do [ $cp -ge "$gpus" ] || echo $cp; done
}

small="--heads 8 --kv-heads 4 --seq 1920 --pass forward+backward --repeats 1"
big="--heads 16 --kv-heads 16 --head-dim 128 --cluster hgx-h200 --sample-rows 2"
on="run --backend cuda --cp"
cuda="$on $gpus"

later=$parts
for part in $parts; do
    later=${later#"$part"}
    later=${later# }
    deadline=$((SECONDS + 100000))
    if [ "$budget" -gt 0 ]; then
        deadline=$((SECONDS + ${share[$part]:-0}))
        if [ "$part" = validate ]; then
            deadline=$((budget - 5))
            for other in $later; do deadline=$((deadline - ${share[$other]:-0})); done
        fi
        [ $deadline -lt "$budget" ] || deadline=$budget
    fi
    case $part in
    correct)
        # shellcheck disable=SC2086
        {
            if [ "$gpus" -gt 1 ]; then
                for by in copy-engine nccl; do
                    for cp in $(groups); do
                        run "correct-$cp-$by" 60 $on "$cp" $small --pad --head-dim 128 --transport $by --limit 50 --schedule "$(every "$cp")"
                    done
                done
                run correct-full 60 $cuda $small --head-dim 64 --mask full --schedule all
                run correct-window 60 $cuda $small --head-dim 128 --mask window:300 --dtype fp16 --schedule all
                run correct-documents 60 $cuda ${small/--seq 1920/--seq 1000} --head-dim 128 --pad --mask docs:300,17,500,183 --schedule all
                run correct-chunks 60 $cuda $small --head-dim 128 --chunks 4 --copy pull --schedule ring,zigzag,striped,dist-flash
                run correct-direct 60 $cuda $small --head-dim 128 --chunks 4 --route direct --schedule ring,zigzag,striped,dist-flash
                # Fused launches of more than two ranks want room for all keys.
                ahead=$((gpus > 2 ? gpus - 1 : 1))
                run correct-fused 60 $cuda $small --head-dim 128 --chunks 4 --prefetch $ahead --mode fused-queries --schedule ring,zigzag,striped,dist-flash
                run correct-fused-segments 60 $cuda $small --head-dim 128 --chunks 3 --prefetch $ahead --mode fused --schedule ring,zigzag,striped,dist-flash
            fi
            # Where there are four GPUs, four ranks need not take turns.
            if [ "$gpus" -lt 4 ]; then
                for cp in 1 3 4 8; do
                    run "correct-virtual-$cp" 60 run --backend cuda $small --cp "$cp" --head-dim 128 --virtual --schedule all
                done
            fi
        }
        ;;
    times)
        # shellcheck disable=SC2086
        {
            both="--pass forward+backward"
            for seq in 16Ki 64Ki 128Ki; do
                run times-$seq 60 $cuda $big --seq $seq --schedule ring,zigzag,striped,striped:128 $both
                run times-fused-$seq 40 $cuda $big --seq $seq --schedule zigzag,striped:128 --mode fused-queries --chunks 4
            done
            run times-256Ki 90 $cuda $big --seq 256Ki --schedule zigzag,striped:128 $both --repeats 3
            run times-pull-64Ki 40 $cuda $big --seq 64Ki --schedule zigzag $both --copy pull
            run times-direct-64Ki 40 $cuda $big --seq 64Ki --schedule zigzag,striped:128 $both --route direct --chunks 4
            run times-direct-16Ki 40 $cuda $big --seq 16Ki --schedule zigzag,striped:128 $both --route direct --chunks 4
            run times-segments-64Ki 40 $cuda $big --seq 64Ki --schedule zigzag --mode fused --chunks 4
            run times-nccl-64Ki 40 $cuda $big --seq 64Ki --schedule ring,zigzag $both --transport nccl
            for kv in 4 2; do
                run times-grouped-$kv 40 $cuda ${big/--kv-heads 16/--kv-heads $kv} --seq 64Ki --schedule ring,zigzag,striped:128 $both
            done
            run times-heads-64Ki 60 $cuda $big --seq 64Ki --schedule all-gather,ulysses,dist-flash $both
            # The same work on one GPU, without messages: the rate that overlap is held against.
            run times-one-gpu-64Ki 40 run --backend cuda --cp $gpus $big --virtual --seq 64Ki --schedule zigzag,striped:128 $both
        }
        ;;
    processes)
        # shellcheck disable=SC2086
        timeout -k 5 60 torchrun --standalone --nproc-per-node "$gpus" --no-python "$ringlab" run --backend cuda $small --head-dim 128 \
            --transport nccl --schedule ring,zigzag --format json -o "$out/processes.json" > "$out/processes.txt" 2>&1 ||
            { failed=1; echo "FAILED processes: $(tail -c 600 "$out/processes.txt" | tr '\n' ' ')"; }
        ;;
    faults)
        # A process is killed; the other one has to end by itself, in time, and name it.
        if [ "$gpus" -gt 1 ]; then
            pids=()
            for rank in 0 1; do
                # shellcheck disable=SC2086
                timeout -s KILL 55 "$ringlab" run --backend cuda ${small/--repeats 1/--repeats 100000} --head-dim 128 --transport nccl --schedule zigzag \
                    --rank $rank --world-size 2 --local-rank $rank --rendezvous "$out/meet" --run-id fault --timeout "15 s" > "$out/fault-$rank.txt" 2>&1 &
                pids+=($!)
            done
            sleep 12
            pkill -KILL -f -- '--rank 1 --world-size 2'
            start=$SECONDS
            wait "${pids[0]}"
            echo "after rank 1 was killed, rank 0 ended with $? in $((SECONDS - start)) s: $(tail -c 300 "$out/fault-0.txt" | tr '\n' ' ')"
            wait
            rm -rf "$out/meet"
        fi
        ;;
    peers)
        # shellcheck disable=SC2086
        if [ "$gpus" -ge 4 ]; then
            # Ours at the same sizes, in the same hour.
            for seq in 64Ki 128Ki; do
                run times-beside-peers-$seq 30 $cuda $big --seq $seq --schedule zigzag,striped:128 --pass forward+backward
            done
        fi
        seconds=$(at_most 170)
        timeout -k 5 "$((seconds > 5 ? seconds : 5))" torchrun --standalone --nproc-per-node "$gpus" "$here/peers_context_parallel.py" \
            "$out" --seconds "$((seconds - 15))" > "$out/peers.txt" 2>&1 ||
            { failed=1; echo "FAILED peers: $(tail -c 300 "$out/peers.txt" | tr '\n' ' ')"; }
        ;;
    calibrate)
        start=$SECONDS
        timeout -s INT -k 10 "$(at_most 260)" "$ringlab" calibrate --backend cuda -o "$out/calibrated.toml" --samples "$out/calibration.csv" \
            2> "$out/calibrate.txt" || { failed=1; echo FAILED calibrate; }
        cat "$out/calibrate.txt"
        echo "calibrate: $((SECONDS - start)) s"
        ;;
    shape)
        # 8Ki tokens a GPU, as in the table of ring-flash-attention's README, and the same on one GPU alone.
        # shellcheck disable=SC2086
        {
            cluster=hgx-h200
            [ ! -s "$out/calibrated.toml" ] || cluster=$out/calibrated.toml
            readme="--heads 32 --kv-heads 8 --head-dim 128 --pass forward+backward --sustain 500 --sample-rows 2"
            run shape-one 30 $on 1 $readme --cluster "$cluster" --seq 8Ki --schedule ring
            run shape-copies 30 $cuda $readme --cluster "$cluster" --seq $((8 * gpus))Ki --schedule ring,zigzag,striped
            run shape-nccl 30 $cuda $readme --cluster "$cluster" --seq $((8 * gpus))Ki --schedule ring,zigzag,striped --transport nccl
        }
        ;;
    validate)
        # The whole matrix takes about five minutes under load. A point that has begun may take 25 s.
        seconds=$(at_most $((limit + 25)))
        run validate "$seconds" validate --backend cuda ${load:+--load "$load"} --cluster "$out/calibrated.toml" --limit "$((seconds > 25 ? seconds - 25 : 0))" \
            --plot "$out/validate.svg"
        ;;
    *)
        failed=1
        echo "there is no part $part"
        ;;
    esac
done
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > "$out/machine.txt"
python3 "$here/table_runtime.py" "$out"
exit $failed
